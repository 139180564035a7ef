"""A host that runs slower or faster than before: what it makes of the throughput after a change."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from pgsweep.evidence.processor_times import joined_host
from pgsweep.evidence.store import Evidence, EvidenceMeta
from pgsweep.host.processor_pace import ROUND_SECONDS, Pace, PaceTimer
from pgsweep.host.processor_time import Spacing
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.observed import Observation, Server
from pgsweep.sizing.throughput.host_pace import PaceEffect, effect_of_pace, paces_of
from tests.fix_throughput import Recorded, delay_for, exact


def timed(nanoseconds: int, error: int = 0, *, busy: bool = False) -> Recorded:
    """Return a recording of transactions that take 1 ms of four processors, or 3.5 ms of 4 ms."""
    host = {"pace_nanoseconds": str(nanoseconds), "pace_error_nanoseconds": str(error)}
    used = 35.0 if busy else 10.0
    return Recorded(host=host, server_cpu_seconds=used, host_cpu_seconds=used)


STARTS = 0.03 * 2**0.5
"""By which two starts of a server differ."""


def besides(found: PaceEffect) -> float:
    """Return the error without what two starts of a server differ by."""
    return math.sqrt(max(0.0, found.error**2 - STARTS**2))


def effect(before: Recorded, after: Recorded) -> PaceEffect:
    return effect_of_pace(*(Observation(cast(Evidence, one)) for one in (before, after)))


@pytest.mark.parametrize(("busy", "demand"), [(False, 0.001), (True, 0.0035)])
@pytest.mark.parametrize("now", [800, 1000, 1250])
def test_the_throughput_is_that_of_the_loop_at_the_present_pace(busy: bool, demand: float, now: int) -> None:
    delay = delay_for(1000.0, sessions=4, demand_seconds=demand, processors=4)
    assert delay is not None
    at_the_pace_before = exact(4, delay, demand * 1000 / now, 4)
    found = effect(timed(1000), timed(now, busy=busy))
    assert found.factor == pytest.approx(1000 / at_the_pace_before, rel=0.005)
    assert found.error == pytest.approx(STARTS)
    assert bool(found.reasons) == (abs(found.factor - 1) > 0.01)


def test_a_busy_server_follows_the_pace_and_one_that_waits_does_not() -> None:
    waits, busy = (effect(timed(1000), timed(1250, busy=busy)).factor for busy in (False, True))
    assert busy == pytest.approx(1 / 1.25, abs=0.04)
    assert waits > 0.93


def test_what_the_pace_is_not_known_to_the_throughput_is_not_either() -> None:
    found = effect(timed(1000, 30), timed(1250, 50, busy=True))
    assert besides(found) == pytest.approx(found.factor * 0.05, rel=0.3), "3% of one and 4% of the other"
    [reason] = found.reasons
    assert "the host itself runs slower: the same work took its processors 1.25 times as long" in reason
    assert "For that 18% less throughput is predicted, known to within" in reason
    [faster] = effect(timed(1250, busy=True), timed(1000, busy=True)).reasons
    assert "runs faster" in faster
    assert "more throughput" in faster


def test_a_pace_that_was_not_observed_to_the_end_only_widens_the_interval() -> None:
    before, alike = Recorded(), Recorded(host={"copy_nanoseconds": "1040"})
    slower, unknown = Recorded(host={"copy_nanoseconds": "1200"}), Recorded(host={"copy_nanoseconds": ""})
    same = PaceEffect(factor=1.0, error=math.hypot(0.0, 0.0, 0.03, 0.03), reasons=[])
    assert effect(before, before) == same
    assert effect(before, unknown) == same
    found = effect(before, alike)
    assert besides(found) == pytest.approx(0.04)
    assert (found.factor, found.reasons) == (1.0, [])
    found = effect(before, slower)
    assert besides(found) == pytest.approx(0.2)
    assert found.factor == 1.0
    [reason] = found.reasons
    assert "runs slower, so the throughput is known to within 33% only" in reason
    [back] = effect(slower, before).reasons
    assert "runs faster" in back


def test_a_disk_of_another_pace_widens_the_interval_by_what_sessions_wait_for_it() -> None:
    def with_disk(one: int, two: int, error: int = 1) -> Recorded:
        depths = f"1:0.000{one}:0.00000{error}:900 2:0.000{two}:0.00000{error}:900"
        return Recorded(host={"disk_latency_by_depth": depths})

    before = with_disk(100, 120)
    assert besides(effect(before, with_disk(100, 123))) == 0
    # Two reads are in flight. Each transaction waits 2 ms for reads, and would 1.6 ms at the former latency.
    found = effect(before, with_disk(100, 150))
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    then = exact(4, delay - 0.0004, 0.001, 4)
    assert besides(found) == pytest.approx(then / 1000 - 1, rel=0.05)
    [reason] = found.reasons
    assert "took 120 microseconds before the change and takes 150 now, 2 in flight" in reason
    assert besides(effect(before, Recorded())) == 0


def timed_rounds(timer: PaceTimer, count: int, now: float = 100.0) -> int:
    """Run the timer at a clock of our own, which moves on by 10 ms; return how many rounds there were."""
    rounds = 0
    for _ in range(count):
        rounds += timer.time_if_due(now) == now + ROUND_SECONDS
        now += 0.01
    return rounds


def test_a_long_recording_is_timed_as_evenly_as_a_short_one_and_costs_less() -> None:
    spacing, kept = Spacing(seconds=0.5, most=100), list[float]()
    for tenth in range(6000):
        if spacing.begin_if_due(tenth / 10):
            kept.append(tenth / 10)
            spacing.thin_if_full(kept)
    assert 50 <= len(kept) <= 100
    apart = [after - before for before, after in pairwise(kept)]
    assert spacing.seconds == 8.0
    assert min(apart) == pytest.approx(8.0, abs=0.2) == max(apart)
    assert kept[0] == 0
    assert kept[-1] > 580


def test_each_processor_is_timed_in_turn_and_all_may_be_used_afterwards(wheel18: Cluster) -> None:
    own = os.sched_getaffinity(0)
    timer = PaceTimer(wheel18.bindir / "postgres", own)
    assert timed_rounds(timer, 100) == pytest.approx(20, abs=2)
    few = timer.pace
    assert few is None, "of so few rounds nothing is said"
    assert timed_rounds(timer, 300, 101.0) == pytest.approx(60, abs=3)
    timer.close()
    counts = [len(times) for times in timer._times.values()]
    assert len(counts) == len(own)
    assert max(counts) - min(counts) <= 1
    assert os.sched_getaffinity(0) == own
    found = timer.pace
    assert found is not None
    assert 2e-7 < found.seconds < 1e-3
    assert 0 < found.error_seconds < found.seconds
    before = sum(counts)
    timed_rounds(timer, 10, 200.0)
    assert sum(map(len, timer._times.values())) == before, "it is closed"


def test_half_the_pace_is_twice_the_time_and_what_changes_slowly_is_no_error() -> None:
    timer = PaceTimer(Path("/nonexistent"), ())
    timer._times = {0: [1e-6 + index * 1e-8 for index in range(100)], 1: [3e-6] * 100}
    assert timer.pace is not None
    assert timer.pace.seconds == pytest.approx((1.495e-6 + 3e-6) / 2)
    assert timer.pace.error_seconds == pytest.approx(1e-8 / 2**0.5 / 10 / 2)


def test_of_a_file_that_cannot_be_read_or_without_processors_there_is_no_pace(wheel18: Cluster) -> None:
    program = wheel18.bindir / "postgres"
    for timer in (PaceTimer(Path("/nonexistent"), os.sched_getaffinity(0)), PaceTimer(program, ())):
        timed_rounds(timer, 500)
        assert timer.pace is None
        timer.close()
    gone = PaceTimer(program, os.sched_getaffinity(0))
    # One that is not there, as after it was taken offline.
    gone._turns, gone._times = [4095], {4095: []}
    timed_rounds(gone, 500)
    assert gone.pace is None
    gone.close()


def test_recordings_that_were_joined_have_the_pace_of_all() -> None:
    def piece(seconds: float, by: str = "CPython 3", **facts: str) -> EvidenceMeta:
        named = {"pace_by": by} if facts else {}
        return EvidenceMeta(source="peek", seconds=seconds, host={"kernel": "6", **named, **facts})

    first = piece(10.0, pace_nanoseconds="1000", pace_error_nanoseconds="30")
    last = piece(30.0, pace_nanoseconds="2000", pace_error_nanoseconds="20")
    unfinished = piece(5.0)
    joined = joined_host(unfinished, [first, last, unfinished])
    assert joined["kernel"] == "6"
    assert (joined["pace_nanoseconds"], joined["pace_error_nanoseconds"]) == ("1750", "17")
    assert paces_of(Server.of(first), Server.of(structs.replace(unfinished, host=joined))) == (
        Pace(1e-6, 3e-8),
        Pace(1.75e-6, 1.7e-8),
    )
    other = piece(10.0, "CPython 4", pace_nanoseconds="1000", pace_error_nanoseconds="30")
    assert paces_of(Server.of(first), Server.of(other)) is None, "another interpreter takes another time"
    assert joined_host(other, [first, other]) == {"kernel": "6"}
    assert joined_host(last, []) == {"kernel": "6"}
