"""Scans in a trace: what goes through a ring leaves nothing behind, what does not comes in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pgsweep import _native
from pgsweep.evidence.schema import FLAG_STRATEGY_KNOWN, TABLES
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.traces.accesses import DROP, STRATEGY, PoolState, Trace
from pgsweep.sizing.traces.curve import TraceCurve
from pgsweep.sizing.traces.order import reorder_sessions
from pgsweep.sizing.traces.recorded import TraceFacts, build_trace
from pgsweep.sizing.traces.spread import Stretch, count_variance, find_events
from pgsweep.sizing.traces.visits import count_visits
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.sizing.verdict import REFUSED, RELIABLE, ROUGH
from tests.fix_ids import server

POINTS, TABLE = 1, 2
DATABASE = 5
VERSION = 16
RULES = _native.Rules(VERSION)


def columns(table_name: str, count: int, /, **given: Any) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for column, kind in TABLES[table_name].items():
        if kind == "str":
            table[column] = np.array(given.get(column, [""] * count), dtype=object)
        else:
            table[column] = np.broadcast_to(given.get(column, 0), count).astype(kind)
    return table


def traced(accesses: dict[str, Any], relations: dict[str, Any], **facts: Any) -> Trace:
    return build_trace(TraceFacts(accesses=accesses, relations=relations, database_oid=DATABASE, **facts))


class Life:
    """Accesses of a workload over its whole life: point reads, and a table that is scanned in turn.

    Args:
        points: pages of the point reads, and how many come a second.
        table_blocks: of the scanned table.
        every_seconds: from the beginning of a scan to the next.
        exponent: of Zipf's law for the point reads; 0 for uniform.
    """

    def __init__(
        self,
        seconds: float,
        *,
        points: tuple[int, int] = (8_000, 4_000),
        table_blocks: int = 4_000,
        every_seconds: float = 4.0,
        exponent: float = 1.0,
        seed: int = 1,
    ) -> None:
        random = np.random.default_rng(seed)
        pages, rate = points
        self.points, self.table_blocks = pages, table_blocks
        count = int(seconds * rate)
        weights = np.cumsum(np.arange(1, pages + 1) ** -exponent)
        ranks = np.searchsorted(weights / weights[-1], random.random(count))
        reads = np.random.default_rng(7).permutation(pages)[np.minimum(ranks, pages - 1)]
        begins = np.arange(1.0, seconds, every_seconds)
        scan = np.repeat(np.arange(1, len(begins) + 1), table_blocks)
        scanned_at = np.repeat(begins, table_blocks) + np.tile(np.arange(table_blocks), len(begins)) * 5e-5
        at = np.concatenate([np.sort(random.random(count)) * seconds, scanned_at])
        order = np.argsort(at, kind="stable")
        self.at = at[order]
        self.block = np.concatenate([reads, np.tile(np.arange(table_blocks), len(begins))])[order]
        self.scan = np.concatenate([np.zeros(count, dtype=np.int64), scan])[order]

    def trace(self, begin: float = 0.0, end: float = np.inf, *, vacuum: bool = False) -> Trace:
        """A stretch of it, as a recording would have it; the scans may be VACUUM's."""
        part = (self.at >= begin) & (self.at < end)
        scans = self.scan[part] > 0
        count = int(part.sum())
        accesses = columns(
            "accesses",
            count,
            time_ns=(self.at[part] - begin) * 1e9,
            pid=np.where(scans, 2, 1),
            db=DATABASE,
            rel=np.where(scans, TABLE, POINTS),
            block=self.block[part],
            flags=np.where(scans, 5, 4),
            scan=self.scan[part],
        )
        relations = columns(
            "relations",
            2,
            name=["points", "scanned"],
            db=DATABASE,
            rel=[POINTS, TABLE],
            blocks_begin=[self.points, self.table_blocks],
            blocks_end=[self.points, self.table_blocks],
        )
        accesses["strategy"] = np.zeros(count, dtype=np.uint8)
        accesses["flags"] &= ~np.uint8(FLAG_STRATEGY_KNOWN)
        if vacuum:
            accesses["strategy"] = np.where(scans, _native.VACUUM, 0).astype(np.uint8)
            accesses["flags"] = np.zeros(count, dtype=np.uint8)
        return traced(accesses, relations, seconds=min(end, self.at[-1]) - begin)

    def truth(self, sizes: list[int], begin: float, end: float) -> list[float]:
        """The miss ratios of a stretch, in pools that have lived from the beginning."""
        whole = self.trace()
        window = np.searchsorted(self.at, [begin, end]).astype(np.uint64)
        counts = _native.replay(
            whole.pages,
            sizes,
            RULES,
            flags=whole.flags,
            owner_access=whole.owner_access,
            owner=whole.owner,
            owner_blocks=whole.owner_blocks,
            windows=window,
        )
        ratios: list[float] = (counts["misses"][:, 0] / counts["accesses"][0]).tolist()
        return ratios


def predicted(trace: Trace, sizes: list[int], pool_blocks: int = 0, lost_events: int = 0) -> Estimate:
    return TraceCurve(trace, server(pool_blocks, version=VERSION, lost_events=lost_events)).at(sizes)


def test_a_table_that_scans_read_through_a_ring_is_not_in_the_warm_pool() -> None:
    """A quarter of the largest pool is less than the table: at every size its scans miss as they do today."""
    life = Life(100)
    sizes = [256, 1_024, 4_096, 15_000]
    truth = life.truth(sizes, 80, 96)
    found = predicted(life.trace(80, 96), sizes)
    assert min(truth) > 0.15
    assert found.miss_ratio == pytest.approx(truth, abs=0.012)
    assert np.all((found.low <= truth) & (truth <= found.high))


@pytest.mark.parametrize(
    ("pages", "rate", "seconds", "span"), [(20_000, 500, 400, 40), (60_000, 20_000, 40, 12)]
)
def test_a_table_that_scans_read_without_a_ring_stays_if_the_hand_comes_seldom_enough(
    pages: int, rate: int, seconds: float, span: float
) -> None:
    """With few other misses a clock pass takes longer than the scans are apart, with many it does not."""
    life = Life(seconds, points=(pages, rate), table_blocks=2_000, exponent=0.0)
    sizes = [8_000, 12_000, 40_000]
    truth = life.truth(sizes, seconds - span, seconds)
    found = predicted(life.trace(seconds - span, seconds), sizes)
    assert found.miss_ratio == pytest.approx(truth, abs=0.006)


def test_pages_that_rings_leave_behind_are_a_reason() -> None:
    """All else fits: whatever a ring leaves in the pool, the next scan finds, and more from scan to scan."""
    life = Life(60, points=(2_000, 2_000))
    found = predicted(life.trace(40, 60), [8_000])
    assert found.level == ROUGH
    [lingering] = [reason.text for reason in found.reasons if reason.code == "scans-linger"]
    assert "scans of scanned" in lingering
    assert found.low[0] < 0.05 < 0.2 < found.miss_ratio[0]


def test_the_interval_is_that_of_the_stretch_that_was_recorded() -> None:
    """Stretches differ by more than the interval of each is wide; each holds its own truth."""
    life = Life(200, every_seconds=7.3)
    sizes = [512, 1_500, 3_000]
    truths, intervals, shown = [], [], []
    for begin in np.arange(80, 190, 11.0):
        found = predicted(life.trace(begin, begin + 11), sizes)
        truths.append(life.truth(sizes, begin, begin + 11))
        assert found.of_stretch is not None
        intervals.append(found.of_stretch)
        shown.append((found.low, found.high))
    truth = np.array(truths)
    # What is shown holds the truth of the other stretches too.
    least, most = np.max([low for low, _ in shown], axis=0), np.min([high for _, high in shown], axis=0)
    assert np.mean((least <= truth) & (truth <= most)) >= 0.85
    low, high = np.array([pair[0] for pair in intervals]), np.array([pair[1] for pair in intervals])
    assert np.mean((low <= truth) & (truth <= high)) >= 0.85
    assert np.all((high - low).mean(axis=0) < 0.02)
    assert np.all(truth.max(axis=0) - truth.min(axis=0) > 0.04)


def test_what_rings_gather_is_simulated() -> None:
    """32 pages of the table are left by each scan: after a minute a quarter of it is there."""
    life = Life(300, points=(2_000, 2_000), every_seconds=2.0)
    size = 8_000
    trace = life.trace(260, 300)
    found = predicted(trace, [size])
    early, late = (life.truth([size], begin, begin + 40)[0] for begin in (20, 260))
    assert found.low[0] <= late <= found.high[0] and found.low[0] <= early <= found.high[0]
    assert late < early - 0.2
    # The scans of a minute: 32 pages each of 4,000.
    rate = 1 - 32 * (60 / 2) / 4_000
    assert found.miss_ratio[0] == pytest.approx(early * rate, abs=0.12)


@pytest.mark.parametrize(("points", "kept"), [((12_000, 500), True), ((60_000, 8_000), False)])
def test_what_vacuum_keeps_of_its_rings_is_in_the_interval(points: tuple[int, int], kept: bool) -> None:
    """It comes more often than the hand: in the end all of the table is there, and nothing of it misses."""
    trace = Life(40.0, points=points, every_seconds=8.0).trace(vacuum=True)
    [replayed] = (estimate := predicted(trace, [8_000])).miss_ratio
    table = np.count_nonzero(trace.page_group[trace.pages] == 1) / len(trace.pages)
    reasons = [reason.text for reason in estimate.reasons if reason.code == "vacuums-linger"]
    assert (estimate.low[0] < replayed - 0.5 * table) == kept
    assert ["VACUUM of scanned keeps" in text for text in reasons] == [True] * kept
    assert estimate.level == ROUGH or not kept


def test_a_session_keeps_its_order_in_every_order() -> None:
    life = Life(20)
    trace = life.trace()
    other = reorder_sessions(trace, np.random.default_rng(1))
    assert other is not None
    assert not np.array_equal(other.pages, trace.pages)
    assert np.all(np.diff(other.seconds) >= 0)
    points = trace.backend == 1
    kept = other.pages[other.backend == 1] == trace.pages[points]
    assert kept.mean() > 0.98, "a delay that changes faster than time goes may turn two accesses round"
    for one in (trace, other):
        assert np.all(one.backend[one.owner_access.astype(np.int64)] == 2)
        assert np.all((one.flags[one.owner_access.astype(np.int64)] & STRATEGY) > 0)
    alone = replace(trace, backend=np.ones_like(trace.backend))
    assert reorder_sessions(alone, np.random.default_rng(1)) is None


def test_what_a_scan_reads_again_belongs_to_its_ring() -> None:
    """Not at its position, and so without its number: such accesses made the table large at any size."""
    relations = columns(
        "relations", 1, name=["t"], db=DATABASE, rel=TABLE, blocks_begin=[100], blocks_end=[100]
    )
    block = np.append(np.arange(100), [0, 7])
    accesses = columns(
        "accesses",
        102,
        time_ns=np.arange(102) * 1_000_000,
        pid=9,
        db=DATABASE,
        rel=TABLE,
        block=block,
        scan=np.append(np.repeat(3, 100), [0, 0]),
        strategy=1,
        flags=np.append(np.repeat(5, 100), [4, 4]),
    )
    assert traced(accesses, relations).owner_blocks.tolist() == [100]
    accesses["pid"][-1] = 8
    assert traced(accesses, relations).owner_blocks.tolist() == [100, 2**32 - 1]


def test_a_table_scanned_once_may_have_been_there_or_not() -> None:
    life = Life(40, points=(2_000, 2_000), table_blocks=3_000, every_seconds=30.0)
    found = predicted(life.trace(25, 40), [16_000])
    share = 3_000 / 33_000
    assert found.level == ROUGH and any("scanned once" in reason.text for reason in found.reasons)
    assert found.high[0] - found.low[0] > 0.9 * share


def test_a_relation_that_misses_otherwise_than_counted_is_named() -> None:
    """The sum is right: what one relation misses too much, the other misses too little."""
    life = Life(60, table_blocks=0, points=(8_000, 4_000))
    whole, trace = life.trace(0, 60), life.trace(40, 60)
    size = 1_024
    begin = len(whole.pages) - len(trace.pages)
    before = _native.replay_outcomes(whole.pages[:begin], size, RULES)
    pages = before["buffer_pages"]
    # Numbers of pages in the whole life, as the stretch has them.
    numbers = np.full(int(whole.pages.max()) + 2, -1, dtype=np.int64)
    numbers[whole.pages[begin:]] = trace.pages
    buffers = np.flatnonzero(numbers[pages] >= 0)
    start = PoolState(
        pages=numbers[pages[buffers]].astype(np.uint32),
        usage_counts=before["buffer_usage_counts"][buffers],
        buffers=buffers.astype(np.uint32),
        hand=before["hand"],
    )
    halves = (np.arange(len(trace.page_group)) % 2).astype(np.int64)
    outcome = _native.replay_outcomes(
        trace.pages, size, RULES, warm=_native.PoolContents(start.pages, start.usage_counts)
    )["outcomes"]
    missed = outcome == 1
    two = replace(
        trace,
        start=start,
        page_group=halves,
        group_pages=np.array([4_000.0, 4_000.0]),
        group_names=("left", "right"),
        missed=missed,
    )

    plain = predicted(two, [size], size)
    assert "relations-off-today" not in [reason.code for reason in plain.reasons]
    assert plain.miss_ratio[0] == missed.mean(), "at today's size the counted ratio is shown"
    assert plain.replayed_today == pytest.approx(missed.mean(), abs=0.001)
    more = missed.copy()
    more[np.flatnonzero(~missed)[: int(0.02 * len(missed))]] = True
    shown = predicted(replace(two, missed=more), [size], size)
    assert shown.miss_ratio[0] == more.mean()
    assert shown.replayed_today == plain.replayed_today
    assert shown.low[0] <= shown.replayed_today <= shown.high[0]
    group = halves[trace.pages]
    moved = missed.copy()
    many = int(0.05 * len(missed))
    moved[np.flatnonzero(missed & (group == 0))[:many]] = False
    moved[np.flatnonzero(~missed & (group == 1))[:many]] = True
    found = predicted(replace(two, missed=moved), [size], size)
    assert found.level == ROUGH
    assert any(
        reason.code == "relations-off-today" and ("left" in reason.text or "right" in reason.text)
        for reason in found.reasons
    )


def test_scans_that_come_in_turn_vary_less_than_scans_at_random() -> None:
    regular = np.arange(8, dtype=np.float64) * 4
    irregular = np.sort(np.random.default_rng(3).random(8) * 32).astype(np.float64)
    assert count_variance(regular) == pytest.approx(1 / 6)
    assert count_variance(irregular) > 1
    assert count_variance(regular[:3]) == 3, "three scans tell nothing of their distances"


def test_the_interval_holds_other_stretches_of_the_same_workload() -> None:
    life = Life(400, every_seconds=4.3)
    begins = np.arange(0, 380, 15.0)
    ratios = []
    for begin in begins:
        trace = life.trace(begin, begin + 15)
        misses = _native.replay_outcomes(
            trace.pages,
            1_024,
            RULES,
            flags=trace.flags,
            owner_access=trace.owner_access,
            owner=trace.owner,
            owner_blocks=trace.owner_blocks,
        )["outcomes"]
        stretch = Stretch(trace, trace.counted)
        ratios.append((np.count_nonzero(misses == 1) / stretch.total, stretch.deviation(misses == 1)))
    mean = float(np.mean([ratio for ratio, _ in ratios]))
    inside = sum(bool(abs(ratio - mean) <= width) for ratio, width in ratios)
    assert inside / len(ratios) >= 0.85
    assert np.mean([width for _, width in ratios]) < 0.06


def test_processes_that_share_a_scan_are_one_event() -> None:
    trace = Life(20).trace()
    halves = np.where(np.arange(len(trace.owner)) % 2, trace.owner * 2, trace.owner * 2 + 1)
    shared = replace(trace, owner=halves.astype(np.uint32), owner_blocks=np.repeat(trace.owner_blocks, 2))
    assert find_events(trace).count == find_events(shared).count == 5
    assert not find_events(shared).sharing.any()


def test_the_size_at_which_a_scan_begins_to_use_a_ring_is_that_of_the_main_fork() -> None:
    """Neither the other forks nor what the table gained after the scan count; a truncation does."""
    relations = columns(
        "relations",
        1,
        name=["t"],
        db=DATABASE,
        rel=TABLE,
        blocks_begin=[100],
        blocks_end=[400],
        fsm_blocks=[30],
        vm_blocks=[10],
    )
    block = np.concatenate([np.arange(100), np.arange(100, 400), np.arange(50)])
    scan = np.repeat([1, 0, 2], [100, 300, 50])
    accesses = columns(
        "accesses",
        450,
        time_ns=np.arange(450) * 1_000_000,
        pid=9,
        db=DATABASE,
        rel=TABLE,
        block=block,
        scan=scan,
        kind=np.where(scan == 0, 2, 0),
        flags=np.where(scan == 0, 0, 1),
    )
    drops = columns("drops", 1, row=400, db=DATABASE, rel=TABLE, fork=0, first_block=50)
    trace = traced(accesses, relations, drops=drops)
    assert trace.owner_blocks.tolist() == [100, 50]
    # The one row without the mark of a scan's position does not make the table large everywhere.
    accesses["flags"][3], accesses["strategy"][3] = 0, 1
    assert traced(accesses, relations).owner_blocks.tolist() == [100, 400]


def test_dropped_pages_leave_the_simulated_pools_at_once() -> None:
    """Also those that the trace never visits, if a warm pool holds them."""
    relations = columns(
        "relations",
        2,
        name=["kept", "gone"],
        db=DATABASE,
        rel=[POINTS, TABLE],
        blocks_begin=[50, 20],
        blocks_end=[50, 0],
    )
    accesses = columns(
        "accesses",
        60,
        time_ns=np.arange(60) * 1_000_000,
        db=DATABASE,
        rel=np.where(np.arange(60) < 10, TABLE, POINTS),
        block=np.where(np.arange(60) < 10, np.arange(60), np.arange(60) - 10),
    )
    drops = columns("drops", 1, row=10, db=DATABASE, rel=TABLE, fork=255, first_block=0)
    trace = traced(accesses, relations, drops=drops)
    dropped = np.flatnonzero(trace.flags & DROP)
    assert dropped.tolist() == list(range(10, 30))
    assert len(np.unique(trace.pages[dropped])) == 20
    assert trace.counted.sum() == 60
    left = _native.replay_outcomes(trace.pages, 100, _native.Rules(18), flags=trace.flags)
    assert sorted(left["buffer_pages"][left["buffer_pages"] < 2**32 - 1]) == sorted(
        set(trace.pages[trace.page_group[trace.pages] == 0].tolist())
    )
    assert count_visits(trace).of_page.sum() == 60


def test_a_drop_in_a_trace_without_accesses_takes_no_page_out() -> None:
    relations = columns("relations", 1, name=["gone"], db=DATABASE, rel=TABLE)
    drops = columns("drops", 1, db=DATABASE, rel=TABLE, fork=255)
    trace = traced(columns("accesses", 0), relations, drops=drops)
    assert not len(trace.pages) and not len(trace.flags)


def test_pages_made_before_a_trace_and_left_alone_fill_a_part_of_the_pool() -> None:
    """A log that only grows: of the pool, what is not read fills as much as it does on a server."""
    random = np.random.default_rng(2)
    count, rate = 60_000, 1_000.0
    new = random.random(count) < 0.2
    block = np.where(new, 5_000 + np.cumsum(new), random.integers(0, 3_000, count))
    relations = columns(
        "relations",
        2,
        name=["read", "log"],
        db=DATABASE,
        rel=[POINTS, TABLE],
        blocks_begin=[3_000, 100_000],
        blocks_end=[3_000, 120_000],
    )
    accesses = columns(
        "accesses",
        count,
        time_ns=np.arange(count) / rate * 1e9,
        db=DATABASE,
        rel=np.where(new, TABLE, POINTS),
        block=np.where(new, 95_000 + np.cumsum(new), block),
        kind=np.where(new, 2, 0),
    )
    trace = traced(accesses, relations)
    short = traced({name: column[30_000:40_000] for name, column in accesses.items()}, relations, seconds=10)
    size = 2_500
    outcome = _native.replay_outcomes(trace.pages, size, RULES, flags=trace.flags)
    truth = np.count_nonzero(outcome["outcomes"][30_000:] == 1) / np.count_nonzero(~new[30_000:])
    assert predicted(short, [size]).miss_ratio[0] == pytest.approx(truth, abs=0.01)
    pages, _ = WarmPools(short, count_visits(short), RULES).draw_pages(size, random)
    strangers = np.count_nonzero(pages >= len(short.page_group))
    held = outcome["buffer_pages"]
    assert strangers == pytest.approx(np.count_nonzero(trace.page_group[held] == 1), rel=0.35)


@pytest.mark.parametrize(
    ("seconds", "wrong", "lost", "level", "words"),
    [
        (16.0, 0.0, 0, RELIABLE, ""),
        (0.1, 0.0, 0, REFUSED, "only"),
        (1.0, 0.0, 0, ROUGH, "only"),
        (16.0, 0.0, 90_000, REFUSED, "lost"),
        (16.0, 0.01, 0, ROUGH, "at today's size"),
        (16.0, 0.1, 0, REFUSED, "at today's size"),
    ],
)
def test_the_level_and_its_reason(seconds: float, wrong: float, lost: int, level: str, words: str) -> None:
    life = Life(60, table_blocks=0)
    trace = life.trace(40, 40 + seconds)
    whole = life.trace(0, 40 + seconds)
    outcome = _native.replay_outcomes(whole.pages, 1_024, RULES)["outcomes"][-len(trace.pages) :] == 1
    hits = np.flatnonzero(~outcome)
    outcome[hits[: int(wrong * len(outcome))]] = True
    found = predicted(replace(trace, missed=outcome), [512, 1_024, 2_048], 1_024, lost)
    assert found.level == level, found.reasons
    assert found.usable == (level != REFUSED)
    assert words == "" or words in found.reasons[0].text


def test_every_access_with_a_strategy_has_an_owner() -> None:
    trace = Life(20).trace()
    assert np.array_equal(np.flatnonzero(trace.flags & STRATEGY), trace.owner_access)
