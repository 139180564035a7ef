from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from pgsweep.sizing.snapshots.curve import PASS_SCALES, Curve
from pgsweep.sizing.snapshots.load import Flow, SampledPool
from pgsweep.sizing.snapshots.rates import GRID, SINGLE, Rates, cap_to_counters

SECONDS = 30.0
PASS_SECONDS = 5.0


def group(pages: float, visits_per_pass: float) -> Rates:
    every = np.zeros(len(GRID))
    every[int(np.argmin(np.abs(GRID - visits_per_pass)))] = pages
    return Rates(pages=every, batch=SINGLE, hot_batch=SINGLE)


def pool_of(blocks: int, flows: list[Flow], ring_blocks: Callable[[int], int] = lambda _: 0) -> SampledPool:
    return SampledPool(blocks=blocks, seconds=SECONDS, flows=flows, ring_blocks=ring_blocks)


def absent(rates: Rates, scale: float) -> float:
    """Return P(absent) of the group's pages when the pass is so much longer."""
    return float(rates.law(GRID[None, :] * scale)[0, :, 0] @ rates.pages / rates.pages.sum())


def misses_per_second(rates: Rates, scale: float) -> float:
    return absent(rates, scale) * float(rates.pages @ GRID) / PASS_SECONDS


@pytest.mark.parametrize("blocks", [500, 1000, 1500])
def test_what_never_misses_today_does_so_in_a_pool_too_small_for_it(blocks: int) -> None:
    """The counters of a relation that is always resident say nothing of it: its rates do."""
    hot, cold = group(2000, 80.0), group(100_000, 0.05)
    resident = hot.resident() + cold.resident()
    flows = [Flow(misses=0.0), Flow(misses=misses_per_second(cold, 1.0))]
    curve = Curve([hot, cold], PASS_SECONDS, pool_of(round(resident), flows))

    scales = PASS_SCALES
    sizes = [2000 * (1 - absent(hot, s)) + 100_000 * (1 - absent(cold, s)) for s in scales]
    scale = float(np.exp(np.interp(np.log(blocks), np.log(sizes), np.log(scales))))
    expected = misses_per_second(hot, scale) + misses_per_second(cold, scale)
    assert misses_per_second(hot, scale) > 5 * misses_per_second(cold, scale)
    assert curve.miss_rates([hot.pages, cold.pages], [blocks])[0] == pytest.approx(expected, rel=0.03)


def test_counted_misses_outweigh_the_rates() -> None:
    cold = group(100_000, 0.05)
    counted = 1.5 * misses_per_second(cold, 1.0)
    curve = Curve([cold], PASS_SECONDS, pool_of(round(cold.resident()), [Flow(misses=counted)]))
    assert curve.miss_rates([cold.pages], [round(cold.resident())])[0] == pytest.approx(counted, rel=0.01)


def test_rates_are_capped_by_what_the_server_counted() -> None:
    """First the batches of hot pages shrink, then the highest rates are cut; no page is lost."""
    rates = group(100.0, 60.0)
    batches = Rates(
        pages=rates.pages + group(5000.0, 0.5).pages, batch=SINGLE, hot_batch=np.eye(len(SINGLE))[1]
    )
    every = batches.accesses_per_pass()
    single = Rates(pages=batches.pages, batch=SINGLE, hot_batch=SINGLE).accesses_per_pass()
    assert every > single + 1000
    assert cap_to_counters(batches, every) is batches
    between = cap_to_counters(batches, (every + single) / 2)
    assert between.accesses_per_pass() == pytest.approx((every + single) / 2)
    assert between.pages.tolist() == batches.pages.tolist()
    for counted in (0.9 * single, 0.7 * single):
        cut = cap_to_counters(batches, counted)
        assert cut.accesses_per_pass() <= counted
        assert cut.accesses_per_pass() > 0.8 * counted, "no more is cut than needed"
        assert cut.pages.sum() == pytest.approx(batches.pages.sum())
    # What the counters of pages do show is not cut: the slow pages stay as they are.
    slow = GRID < 1
    assert cap_to_counters(batches, 0.0).pages[slow].tolist() == batches.pages[slow].tolist()


@pytest.mark.parametrize("vacuumed", [400.0, 4000.0])
def test_vacuum_misses_what_the_rates_leave_of_the_misses(vacuumed: float) -> None:
    """It reads through a ring, so in a pool of any size it misses the pages that visits do not keep there."""
    cold = group(100_000, 0.05)
    own, away = misses_per_second(cold, 1.0), absent(cold, 1.0)
    flow = Flow(misses=own + 400.0 * away, vacuumed=vacuumed)
    curve = Curve([cold], PASS_SECONDS, pool_of(round(cold.resident()), [flow]))
    assert curve.expected_misses([cold.pages]) == [pytest.approx(flow.misses, rel=0.01)]
    every = round(100_000 * (1 - absent(cold, 20.0)))
    expected = misses_per_second(cold, 20.0) + 400.0 * absent(cold, 20.0)
    assert curve.miss_rates([cold.pages], [every])[0] == pytest.approx(expected, rel=0.02)
    nothing_left = replace(flow, misses=own)
    curve = Curve([cold], PASS_SECONDS, pool_of(round(cold.resident()), [nothing_left]))
    assert curve.expected_misses([cold.pages]) == [pytest.approx(own, rel=0.01)]


def test_what_a_vacuum_leaves_of_its_ring_the_next_one_keeps() -> None:
    """It comes each two and a half passes today, and twice in one where a pass takes five times as long."""
    others, table = group(100_000, 0.05), group(10_000, 0.02)
    flow = Flow(
        misses=misses_per_second(table, 1.0) + 800 * absent(table, 1.0),
        vacuumed=800.0,
        vacuums=0.08,
        scanned_blocks=10_000,
    )
    flows = [Flow(misses=misses_per_second(others, 1.0)), flow]
    pool = replace(
        pool_of(round(others.resident() + table.resident()), flows), vacuum_ring_blocks=lambda _: 256
    )
    pages = [others.pages, table.pages]

    def missed(blocks: float, seconds: float) -> float:
        curve = Curve([others, table], PASS_SECONDS, pool, settled_seconds=seconds)
        return float(curve.by_group(pages, round(blocks))[1][1])

    plain = Curve([others, table], PASS_SECONDS, replace(pool, vacuum_ring_blocks=lambda _: 0))
    assert missed(pool.blocks, np.inf) == pytest.approx(flow.misses, rel=0.01), "today's are counted"
    smaller = plain.by_group(pages, pool.blocks // 2)[1][1]
    assert missed(pool.blocks // 2, np.inf) == pytest.approx(smaller, rel=0.02)
    larger = 100_000 * (1 - absent(others, 5.0)) + 10_000
    without = plain.by_group(pages, round(larger))[1][1]
    assert missed(larger, 0.0) == pytest.approx(without, rel=0.1)
    assert missed(larger, np.inf) < 0.3 * without < missed(larger, 60.0) < 0.95 * without


TABLE_BLOCKS = 3000
SCANS_PER_SECOND = 1.0
COLD = group(100_000, 0.05)
OBSERVED = round(COLD.resident())


def beside_scans(*, missed: float = 1.0, **options: Any) -> Callable[[int], float]:
    """Return the curve of point reads beside scans through rings, five a pass, that miss this share today."""
    rates = beside_scans_at(missed=missed, **options)
    return lambda blocks: rates([blocks])[0]


def beside_scans_at(
    *, missed: float = 1.0, ring_blocks: Callable[[int], int] = lambda _: 0, **options: Any
) -> Callable[[list[int]], list[float]]:
    """Return the same curve, for several sizes at once."""
    table = group(TABLE_BLOCKS, float(GRID[0]))
    flows = [
        Flow(misses=misses_per_second(COLD, 1.0)),
        Flow(
            misses=missed * TABLE_BLOCKS * SCANS_PER_SECOND,
            scans=SCANS_PER_SECOND,
            scanned_blocks=TABLE_BLOCKS,
        ),
    ]
    curve = Curve([COLD, table], PASS_SECONDS, pool_of(OBSERVED, flows, ring_blocks), **options)
    return partial(curve.miss_rates, [COLD.pages, table.pages])


def without_scans(blocks: int) -> float:
    curve = Curve([COLD], PASS_SECONDS, pool_of(OBSERVED, [Flow(misses=misses_per_second(COLD, 1.0))]))
    return curve.miss_rates([COLD.pages], [blocks])[0]


def test_scans_through_a_ring_miss_until_the_table_is_a_quarter_of_the_pool() -> None:
    scans = SCANS_PER_SECOND * TABLE_BLOCKS
    assert OBSERVED < 4 * TABLE_BLOCKS - 100, "a ring today"
    rate = beside_scans()
    for blocks in (OBSERVED, 4 * TABLE_BLOCKS - 100):
        assert rate(blocks) == pytest.approx(without_scans(blocks) + scans, rel=0.01)
    # Without a ring all of the table stays, and takes its blocks from the other pages.
    larger = 4 * TABLE_BLOCKS + 100
    assert rate(larger) == pytest.approx(without_scans(larger - TABLE_BLOCKS), rel=0.05)


def test_sizes_at_once_are_as_each_alone() -> None:
    """Whether there is a ring, and how large it is, is of each size."""
    options: dict[str, Any] = {"ring_blocks": lambda blocks: blocks // 400, "settled_seconds": 30.0}
    sizes = [OBSERVED // 4, OBSERVED, 4 * TABLE_BLOCKS - 100, 4 * TABLE_BLOCKS + 100, OBSERVED]
    rates = beside_scans_at(missed=0.8, **options)(sizes)
    assert len(set(rates)) == 4
    assert rates == [beside_scans(missed=0.8, **options)(blocks) for blocks in sizes]


def test_what_rings_leave_behind_gathers_with_time() -> None:
    blocks, ring = 4 * TABLE_BLOCKS - 100, 32
    scans = SCANS_PER_SECOND * TABLE_BLOCKS
    for seconds in (0.0, 30.0, 60.0):
        there = ring * (1 + seconds * SCANS_PER_SECOND)
        missed = 1 - there / TABLE_BLOCKS
        rate = beside_scans(missed=missed, ring_blocks=lambda _: ring, settled_seconds=seconds)
        assert rate(blocks) == pytest.approx(without_scans(round(blocks - there)) + scans * missed, rel=0.02)
    # In the end all of the table is there.
    whole = beside_scans(missed=0.0, ring_blocks=lambda _: ring)(blocks)
    assert whole == pytest.approx(without_scans(blocks - TABLE_BLOCKS), rel=0.05)


def test_a_scan_has_a_ring_where_its_table_is_more_than_a_quarter_of_the_pool() -> None:
    flow = Flow(misses=1.0, scans=2.0, scanned_blocks=TABLE_BLOCKS)
    assert flow.scan_accesses == 2.0 * TABLE_BLOCKS
    assert flow.ringed(4 * TABLE_BLOCKS - 1)
    assert not flow.ringed(4 * TABLE_BLOCKS)
