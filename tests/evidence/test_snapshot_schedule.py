"""How long to record, and how often to look: the time of a clock pass decides both."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pgsweep.evidence.clock_passes import PassClock
from pgsweep.evidence.schema import wanted_passes
from pgsweep.evidence.snapshot_schedule import LEAST_SECONDS, WANTED_COUNT, SnapshotSchedule
from pgsweep.evidence.snapshots import judged
from pgsweep.pg.catalog.buffercache import SnapshotReader
from pgsweep.pg.catalog.counters import CounterReader
from pgsweep.pg.catalog.server import require_buffercache
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from pgsweep.sizing.snapshots.doubts import length_doubts
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.units import format_minutes
from tests.fix_page import load_running, wait_for_pages


def steady_clock(
    snapshots: int, *, pass_seconds: float, interval_seconds: float, hand_seen: bool = True
) -> PassClock:
    clock = PassClock(1000)
    for number in range(snapshots):
        seconds = number * interval_seconds
        clock.add(
            seconds,
            zero_buffers=400,
            used_buffers=1000,
            allocations=400 * seconds / pass_seconds,
            hand_buffers=round(1000 * seconds / pass_seconds) if hand_seen else None,
        )
    return clock


@pytest.mark.parametrize("pass_seconds", [2.0, 20.0, 150.0, 300.0])
@pytest.mark.parametrize("hand_seen", [True, False])
def test_what_is_enough_is_not_called_short(pass_seconds: float, hand_seen: bool) -> None:
    interval = max(1.0, min(10.0, wanted_passes(hand_seen=hand_seen) * pass_seconds / WANTED_COUNT))
    lengths = (
        steady_clock(count, pass_seconds=pass_seconds, interval_seconds=interval, hand_seen=hand_seen)
        for count in range(5, 2000)
    )
    enough = next(clock for clock in lengths if clock.suffices)
    none = np.zeros(0)
    totals = Totals(
        seconds=enough.passes * pass_seconds,
        hits=9,
        misses=1,
        relation_misses=none,
        relation_accesses=none,
        relation_scans=none,
        relation_scanned_blocks=none,
        relation_growth_blocks=none,
        first_half_miss_ratio=0.1,
        second_half_miss_ratio=0.1,
    )
    # The time of a pass is estimated; one that is counted may be a sixth longer.
    assert length_doubts(totals, enough.snapshots, pass_seconds * 1.16, by_paths=hand_seen) == []
    # A shorter one is to last as long as one that ends by itself.
    [short] = length_doubts(replace(totals, seconds=pass_seconds), 60, pass_seconds, by_paths=hand_seen)
    assert f"record for {format_minutes(enough.wanted_seconds(pass_seconds / 2))}" in short.reason.text


def test_clock_passes_are_estimated_from_allocations() -> None:
    clock = steady_clock(21, pass_seconds=2.0, interval_seconds=1.0, hand_seen=False)
    assert clock.pass_seconds == pytest.approx(2.0)
    assert clock.passes == pytest.approx(10.0)
    assert clock.effective_snapshots == pytest.approx(1 + 20 * (1 - np.exp(-0.5)))
    assert not clock.suffices
    assert clock.wanted_seconds(1.0) == pytest.approx(1.25 * 45 * 2)
    seen = steady_clock(30, pass_seconds=2.0, interval_seconds=1.0)
    assert not seen.suffices
    assert seen.wanted_seconds(2.0) == pytest.approx(11 * 2 / (1 - np.exp(-1.0)))
    assert steady_clock(31, pass_seconds=2.0, interval_seconds=1.0).suffices
    late = PassClock(1000)
    for number in range(10):
        late.add(number, zero_buffers=500, used_buffers=1000, allocations=5000 * (number > 0) + number * 50)
    assert late.pass_seconds == pytest.approx(10.0)  # without the 5000 of before, which were reported late
    still = PassClock(1000)
    for number in range(10):
        still.add(number, zero_buffers=10, used_buffers=500, allocations=number * 50)
    assert np.isinf(still.pass_seconds)
    assert not still.pool_is_full
    assert still.effective_snapshots == 1.0


@pytest.mark.one_server
def test_the_time_of_a_clock_pass_is_that_of_the_hand(server: Cluster, database: str) -> None:
    """Between two snapshots close together, the buffers that changed lie on the arc that the hand passed."""
    buffers = 2048
    clock = PassClock(buffers)
    with (
        load_running(server, database, sessions=1, pause_seconds=0.01),
        connect(server.conninfo(database)) as connection,
    ):
        reader = SnapshotReader(connection, require_buffercache(connection), buffers)
        counters = CounterReader(connection, {}, [])
        wait_for_pages(server, database)
        before, hand, passed = None, None, 0
        moved: list[float] = []
        begin = time.monotonic()
        # The server reports allocations in rounds of 200 ms, which are to be a small part of the time.
        while passed < 6 * buffers or time.monotonic() - begin < 15:
            now = time.monotonic() - begin
            assert now < 60, (passed, moved)
            time.sleep(0.02)  # of the processor that a look takes; the hand moves little meanwhile
            snapshot = reader.take()
            pages = np.zeros(buffers, dtype=np.uint64)
            pages[snapshot.buffer - 1] = (snapshot.rel.astype(np.uint64) << np.uint64(32)) + snapshot.block
            changed = np.flatnonzero(pages != before) if before is not None else np.zeros(0, dtype=np.int64)
            if len(changed) > 1:
                # The hand stands where the longest stretch without a change begins.
                gaps = np.diff(np.append(changed, changed[0] + buffers))
                at = int(changed[gaps.argmax()])
                passed += 0 if hand is None else (at - hand) % buffers
                hand = at
                moved.append(now)
            before = pages
            allocations = next(c.value for c in counters.writers() if c.name == "buffers_alloc")
            clock.add(
                now,
                zero_buffers=snapshot.zero_buffers,
                used_buffers=snapshot.used_buffers,
                allocations=allocations,
            )
    seen_pass_seconds = (moved[-1] - moved[0]) / (passed / buffers)
    assert 0.8 * seen_pass_seconds < clock.pass_seconds < 1.6 * seen_pass_seconds


def test_the_schedule_keeps_its_duty_and_ends() -> None:
    rng = np.random.default_rng(1)
    clock = steady_clock(100, pass_seconds=0.5, interval_seconds=1.0)
    schedule = SnapshotSchedule(0.1, seconds=None, max_snapshots=None, clock=clock, rng=rng)
    assert schedule.share <= 0.025
    assert schedule.reason_to_end(LEAST_SECONDS + 1) == "enough"
    assert schedule.reason_to_end(LEAST_SECONDS - 1) is None
    assert schedule.reason_to_end(600) == "limit", "a judge may have refused what is enough until then"
    for cost_seconds, interval_seconds in ((1.0, 10), (0.2, 2.5)):
        long = SnapshotSchedule(cost_seconds, seconds=10, max_snapshots=None, clock=PassClock(8192), rng=rng)
        assert long.interval_seconds == interval_seconds
    begun = steady_clock(1, pass_seconds=100.0, interval_seconds=1.0)
    schedule = SnapshotSchedule(0.004, seconds=40, max_snapshots=None, clock=begun, rng=rng)
    times = []
    while schedule.due_seconds < 40:
        times.append(schedule.due_seconds)
        schedule.choose_next(schedule.due_seconds)
    assert 40 <= len(times) <= 62
    assert schedule.reason_to_end(39.9) is None
    assert schedule.reason_to_end(40.0) == "time"
    slow = steady_clock(6, pass_seconds=100.0, interval_seconds=1.0)
    schedule = SnapshotSchedule(0.004, seconds=None, max_snapshots=None, clock=slow, rng=rng)
    schedule.choose_next(6.0)
    assert schedule.interval_seconds == 10.0
    assert schedule.reason_to_end(599) is None
    assert schedule.reason_to_end(600) == "limit"
    still = SnapshotSchedule(0.1, seconds=None, max_snapshots=None, clock=PassClock(5), rng=rng)
    assert still.reason_to_end(61) == "still"


def test_a_recording_whose_time_is_over_before_its_first_snapshot_takes_one() -> None:
    clock = PassClock(1000)
    slow = SnapshotSchedule(9.0, seconds=1.0, max_snapshots=None, clock=clock, rng=np.random.default_rng(1))
    assert slow.due_seconds <= 1.0
    assert slow.reason_to_end(5.0) is None
    clock.add(5.0, zero_buffers=400, used_buffers=1000, allocations=0)
    slow.choose_next(5.0)
    assert slow.reason_to_end(5.0) == "time"


def test_only_a_prediction_says_for_how_long_to_record() -> None:
    """Two estimates of the time of a clock pass gave different lengths for one recording."""
    server = cast("Any", SimpleNamespace(settings={}, database="shop"))
    clock = steady_clock(6, pass_seconds=3.0, interval_seconds=1.0)
    warnings, advice = judged(server, clock, 5e4, was_reset=False)
    assert warnings == []
    [short] = advice
    assert "1.7 clock passes" in short
    assert not re.search(r"\d (s|min)\b", short)
