"""The disk in the closed loop of sessions, against a simulation; the curve of latencies by depth."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pgsweep.evidence.disk_latency import latencies_of
from pgsweep.records.prediction import DiskLatency, Throughput
from pgsweep.sizing.throughput.closed_loop import ClosedLoop, Station
from pgsweep.sizing.throughput.disk_curve import (
    ProbedLoad,
    curves_of,
    limit_of,
    never_falling,
    seconds_by_depth,
)
from tests.fix_advice import GB
from tests.fix_throughput import Recorded, exact, predicted

SERVICE = 0.001
ENDED = 20_000


class Queue:
    """Served first come, first served, by several, each for an exponential time."""

    def __init__(self, servers: int, seconds: float) -> None:
        self.free, self.seconds = servers, seconds
        self.waiting: deque[tuple[float, int]] = deque()


def simulated(
    sessions: int, *, delay: float, reads: int, channels: int, probes: int = 0
) -> tuple[float, float, float]:
    """Return transactions per second, the time of a transaction at the disk, and that of a probe's read.

    Each session thinks, uses a processor, and reads from the disk, one read after the other. A probe does
    nothing but read. There are two processors.
    """
    drawn = random.Random(7)
    queues = [Queue(2, 0.0003), Queue(channels, SERVICE)]
    events: list[tuple[float, int, int]] = []
    left = [0] * sessions + [1] * probes
    ended, at_disk, probed, probe_seconds, now = 0, 0.0, 0, 0.0, 0.0
    arrived = [0.0] * (sessions + probes)

    def enter(which: int, who: int) -> None:
        queue = queues[which]
        arrived[who] = now
        if queue.free:
            queue.free -= 1
            heapq.heappush(events, (now + drawn.expovariate(1 / queue.seconds), which, who))
        else:
            queue.waiting.append((now, who))

    def think(who: int) -> None:
        heapq.heappush(events, (now + drawn.expovariate(1 / delay), 2, who))

    for who in range(sessions):
        think(who)
    for who in range(sessions, sessions + probes):
        enter(1, who)
    while ended < ENDED:
        now, which, who = heapq.heappop(events)
        if which < 2:
            queue = queues[which]
            if queue.waiting:
                _, other = queue.waiting.popleft()
                heapq.heappush(events, (now + drawn.expovariate(1 / queue.seconds), which, other))
            else:
                queue.free += 1
        if who >= sessions:
            probed += 1
            probe_seconds += now - arrived[who]
            enter(1, who)
        elif which == 2:
            enter(0, who)
        else:
            if which == 0:
                left[who] = reads
            else:
                at_disk += now - arrived[who]
                left[who] -= 1
            if left[who]:
                enter(1, who)
            else:
                ended += 1
                think(who)
    return ended / now, at_disk / ended, probe_seconds / max(probed, 1)


def latencies(*seconds: float, error: float = 0.0) -> list[DiskLatency]:
    """Return them at depths 1, 2, 4, ..."""
    return [
        DiskLatency(depth=2**index, seconds=one, error_seconds=error, reads=1000)
        for index, one in enumerate(seconds)
    ]


def curve_of(channels: int, most: int) -> NDArray[np.float64]:
    depths = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    return seconds_by_depth(depths, np.maximum(1.0, depths / channels), most, 0.5)


LOADS = [
    # Sessions, delay, channels; reads today and then.
    (4, 0.004, 2, 1, 4),
    (16, 0.004, 4, 1, 3),
    (16, 0.003, 4, 3, 1),
    (8, 0.02, 1, 4, 1),
    (40, 0.01, 8, 1, 2),
]


def with_delay(seconds: float) -> ClosedLoop:
    return ClosedLoop(delay_seconds=seconds, demand_seconds=0.0003, processors=2)


def with_reads(loop: ClosedLoop, times: float) -> ClosedLoop:
    """Return the loop whose transactions read so many times as much."""
    assert loop.disk is not None
    return replace(loop, disk=replace(loop.disk, seconds=loop.disk.seconds * times))


@pytest.mark.parametrize(("sessions", "delay", "channels", "now", "then"), LOADS)
def test_the_throughput_is_that_of_a_simulated_loop(
    sessions: int, delay: float, channels: int, now: int, then: int
) -> None:
    """From what can be measured today, the throughput with more or fewer reads; two processors."""
    today, waited, _ = simulated(sessions, delay=delay, channels=channels, reads=now)
    truth, _, _ = simulated(sessions, delay=delay, channels=channels, reads=then)
    curve = curve_of(channels, sessions + 1)
    loop = with_delay(delay).waiting(waited, curve, sessions)
    base = loop.flow(sessions)
    assert base.throughput == pytest.approx(today, rel=0.03)
    assert base.depth == pytest.approx(today * waited, rel=0.03), "Little's law"
    found = with_reads(loop, then / now).flow(sessions)
    assert found.throughput / base.throughput == pytest.approx(truth / today, rel=0.03)
    assert found.throughput <= channels / SERVICE / then * 1.03


@pytest.mark.parametrize(
    ("sessions", "channels", "then", "farther"), [(12, 4, 3, 0.2), (16, 4, 3, 0.3), (4, 2, 4, 0.1)]
)
def test_latencies_that_were_measured_beside_the_load(
    sessions: int, channels: int, then: int, farther: float
) -> None:
    """As on a server that works: what is measured has the sessions' own reads in it."""
    loop = {"delay": 0.004, "channels": channels}
    today, waited, _ = simulated(sessions, reads=1, **loop)  # type: ignore[arg-type]
    truth, _, _ = simulated(sessions, reads=then, **loop)  # type: ignore[arg-type]
    beside = [
        simulated(sessions, reads=1, probes=depth, **loop)[2]  # type: ignore[arg-type]
        for depth in (1, 2, 4, 8, 16)
    ]
    load = ProbedLoad(sessions=sessions, waited_seconds=waited, loop=with_delay(0.004))
    found = curves_of(latencies(*beside), load)
    curve = found.curves[0]
    assert curve is not None
    disk = load.loop.waiting(waited, curve, sessions)
    ratio = with_reads(disk, then).throughput(sessions) / disk.throughput(sessions)
    assert ratio == pytest.approx(truth / today, rel=0.03)
    assert found.most_reads_per_second == pytest.approx(channels / SERVICE, rel=0.15)
    flat = with_delay(0.004 + then * waited).throughput(sessions)
    assert flat / truth - 1 > farther, "with as long a latency at each depth"


@pytest.mark.parametrize(("sessions", "delay"), [(1, 0.01), (7, 0.002), (200, 0.1), (3000, 0.1)])
@pytest.mark.parametrize("processors", [1, 2, 8])
def test_a_disk_that_is_never_slower_is_a_delay(sessions: int, delay: float, processors: int) -> None:
    station = Station(seconds=0.002, slower=np.ones(sessions + 1))
    loop = ClosedLoop(delay_seconds=delay, demand_seconds=0.005, processors=processors, disk=station)
    found = loop.flow(sessions)
    whole = replace(loop, delay_seconds=delay + 0.002, disk=None).throughput(sessions)
    assert found.throughput == pytest.approx(whole, rel=1e-9)
    assert found.depth == pytest.approx(found.throughput * 0.002, rel=1e-9)
    # Mean value analysis loses its digits here: with 200 sessions at 8 processors it was 28% too low.
    if sessions <= 200:
        assert whole == pytest.approx(exact(sessions, delay + 0.002, 0.005, processors), rel=1e-9)


def test_no_more_than_the_disk_serves() -> None:
    for reads in (1, 2, 8):
        station = Station(seconds=0.001 * reads, slower=curve_of(4, 101))
        found = ClosedLoop(delay_seconds=0.001, demand_seconds=1e-4, processors=4, disk=station).flow(100)
        assert found.throughput == pytest.approx(4000 / reads, rel=0.01)
        assert found.throughput < 4000 / reads * (1 + 1e-9)


def by_depth(*seconds: float, own: float = 0.0, below: float = 0.5, most: int = 20) -> NDArray[np.float64]:
    depths = np.array([2.0**index + own for index in range(len(seconds))])
    return seconds_by_depth(depths, never_falling(np.array(seconds), [1] * len(seconds)), most, below)


def test_the_curve_between_and_beyond_what_was_measured() -> None:
    curve = by_depth(1.0, 1.1, 1.4, 2.0)
    assert curve[[0, 1, 2, 3, 7]] == pytest.approx([1.0, 1.1, 1.25, 1.4, 2.0])
    assert curve[15] == pytest.approx(2.0 + 8 * 0.15), "no limit was seen: as between the last two"
    assert limit_of(np.array([4.0, 8.0]), np.array([1.4, 2.0])) is None
    assert by_depth(1.0, 1.0, 2.0, 4.0)[15] == pytest.approx(8.0), "the disk serves two a second"
    assert limit_of(np.array([4.0, 8.0]), np.array([2.0, 4.0])) == pytest.approx(2.0)
    assert np.all(np.diff(by_depth(1.0, 1.3, 1.2, 1.5)) >= 0)
    assert by_depth(3.0, 2.0, 1.0) == pytest.approx(np.full(20, 2.0)), "not shorter at a greater depth"
    # With 3 of the server besides, the disk was saturated throughout: fewer wait as long, or in proportion.
    flat, likely, steep = (by_depth(4.0, 5.0, 7.0, own=3.0, below=below, most=4) for below in (0.0, 0.5, 1.0))
    assert flat == pytest.approx([4, 4, 4, 4])
    assert steep == pytest.approx([1, 2, 3, 4])
    assert np.all((steep <= likely) & (likely <= flat))


def with_curve(text: str, **host: str) -> Recorded:
    return Recorded(host={"disk_latency_by_depth": text, **host})


READS = {GB: 2000.0, 2 * GB: 1000.0, 4 * GB: 6000.0}
RISING = "1:0.001:0.00001:900 2:0.0012:0.00001:900 4:0.002:0.00001:900 8:0.004:0.00001:900"


def test_a_flat_curve_changes_nothing() -> None:
    without = predicted(Recorded(), READS, 0.1)
    flat = predicted(with_curve("1:0.001:0:900 2:0.001:0:900 4:0.001:0:900"), READS, 0.1)
    assert flat.points == without.points
    assert flat.disk_depth == without.disk_depth == pytest.approx(2.0), "of four sessions, 2 ms in 4"
    assert not flat.disk_most_reads_per_second
    assert any("assumed to take equally long at each depth" in reason for reason in without.reasons)
    assert any("only traces of this version and later measure it" in reason for reason in without.reasons)
    assert not any("depth" in reason for reason in flat.reasons)


def test_the_depth_is_in_the_throughput_and_its_interval() -> None:
    flat = {point.shared_buffers_bytes: point for point in predicted(Recorded(), READS).points}
    found = predicted(with_curve(RISING), READS)
    points = {point.shared_buffers_bytes: point for point in found.points}
    assert points[GB].ratio == 1
    assert points[4 * GB].ratio < flat[4 * GB].ratio < 1, "more wait at once, and so longer"
    assert points[2 * GB].ratio > flat[2 * GB].ratio > 1
    assert [one.depth for one in found.disk_latencies] == [1, 2, 4, 8]
    assert found.disk_most_reads_per_second is not None
    noisy = {
        p.shared_buffers_bytes: p
        for p in predicted(with_curve(RISING.replace("0.00001", "0.0003")), READS).points
    }
    for size in (2 * GB, 4 * GB):
        assert points[size].low < points[size].ratio < points[size].high
        assert noisy[size].high - noisy[size].low > points[size].high - points[size].low
        assert noisy[size].ratio == pytest.approx(points[size].ratio)


@pytest.mark.parametrize(
    "text",
    [
        "1:0.001:0:900",
        "1:0.001:0:900 1:0.001:0:900",
        "2:0.001:0:900 1:0.001:0:900",
        "1:nan:0:900 2:0.001:0:900",
        "1:0.001:0:900 2:1e999:0:900",
        "1:0.001:-1:900 2:0.001:0:900",
        "1:0:0:900 2:0.001:0:900",
        "1:--..ee:0:900 2:0.001:0:900",
        "1:0.001:0:900  2:0.001:0:900",
        "١:0.001:0:900 2:0.001:0:900",
        "1:0.001:0:0 2:0.001:0:900",
        "\x1b[31m:::: ; DROP TABLE t",
        " ".join(f"{depth}:0.001:0:9" for depth in range(1, 400)),
    ],
)
def test_what_cannot_be_is_not_used(text: str) -> None:
    found = predicted(with_curve(text), READS)
    assert found.disk_latencies == []
    assert found.points == predicted(Recorded(), READS).points
    assert any("latency by depth was not measured" in reason for reason in found.reasons)


@given(st.text(alphabet="0123456789:.e- x", max_size=60) | st.text(max_size=30))
def test_no_text_of_a_fact_ends_in_an_error(text: str) -> None:
    found, why = latencies_of({"disk_latency_by_depth": text})
    assert bool(found) != bool(why)
    assert all(0 < one.seconds < 101 and one.depth > 0 for one in found)


def test_why_it_was_not_measured_is_said() -> None:
    why = "all: the data's file system refuses reads past the page cache (O_DIRECT): Invalid argument"
    found: Throughput = predicted(with_curve("", disk_latency_not_measured=why), READS)
    assert any("refuses reads past the page cache" in reason for reason in found.reasons)


def test_extreme_latencies_give_numbers() -> None:
    wild = with_curve("1:0.0000001:100:1 2:100:100:1 1000:0.0000002:0:9 9999:99:1:9")
    for point in predicted(wild, READS, 0.1).points:
        assert math.isfinite(point.ratio) and math.isfinite(point.low) and math.isfinite(point.high)
