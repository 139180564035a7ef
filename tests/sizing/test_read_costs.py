"""What reads cost the sessions, and what each added gigabyte saves of it."""

from __future__ import annotations

import pytest

from pgsweep.evidence.store import EvidenceMeta
from pgsweep.records.prediction import ReadCosts, Throughput
from pgsweep.sizing.observed import Server
from pgsweep.sizing.throughput.read_costs import ASSUMED_COSTS, read_costs, waiting, with_savings
from tests.fix_advice import GB, MB, situation


def test_a_gigabyte_saves_what_sessions_wait_less() -> None:
    """From 1 GB to 4 GB 6000 disk reads and 9000 copies a second less, 100 and 2 microseconds each."""
    known = situation(
        {512 * MB: 0.25, GB: 0.2, 4 * GB: 0.05}, {4 * GB: 3_000.0, 512 * MB: 9_500.0, GB: 9_000.0}
    )
    memory = known.prediction.memory
    assert memory is not None
    found = with_savings(memory, known.prediction.points, known.prediction.observed, ASSUMED_COSTS)
    assert [point.shared_buffers_bytes for point in found.points] == [512 * MB, GB, 4 * GB]
    small, today, largest = found.points
    assert today.wait_ratio == pytest.approx(0.9 + 11_000 * 2e-6)
    assert today.saved_seconds_per_gb == pytest.approx((0.6 + 9_000 * 2e-6) / 3)
    assert small.saved_seconds_per_gb == pytest.approx((0.05 + 4_500 * 2e-6) / 0.5)
    assert largest.saved_seconds_per_gb is None, "there is no larger size"
    # The least that is waited now against the most that is waited then: 5% to either side.
    least = (today.wait_ratio or 0) * 0.95 - (largest.wait_ratio or 0) * 1.05
    assert today.saved_seconds_per_gb_low == pytest.approx(least / 3, rel=0.02)
    for point in (small, today):
        low, high = point.saved_seconds_per_gb_low, point.saved_seconds_per_gb_high
        assert low is not None
        assert high is not None
        assert low < (point.saved_seconds_per_gb or 0) < high
    assert small.saved_seconds_per_gb_low is not None
    assert small.saved_seconds_per_gb_low < 0, "half a gigabyte may cost as well"
    assert found.costs == ASSUMED_COSTS


def test_the_interval_holds_the_value_whatever_reads_cost() -> None:
    """Where a copy takes longer than a read from disk, fewer disk reads are not less waiting."""
    odd = ReadCosts(
        disk_read_seconds=1e-6, disk_read_kind="measured", copy_seconds=5e-6, copy_kind="measured"
    )
    value, low, high = waiting((50.0, 10.0, 90.0), (100.0, 100.0, 110.0), odd)
    assert value == pytest.approx(50e-6 + 250e-6)
    assert low == pytest.approx(90e-6 + 50e-6)
    assert high == pytest.approx(10e-6 + 500e-6)


def test_costs_are_measured_where_the_evidence_says_so() -> None:
    assert read_costs(Server.of(EvidenceMeta(source="trace")).copy_seconds) == ASSUMED_COSTS
    copies = Server.of(EvidenceMeta(source="trace", host={"copy_nanoseconds": "1500"})).copy_seconds
    found = read_costs(copies, Throughput(points=[], reasons=["refused"]))
    assert (found.copy_seconds, found.copy_kind) == (1.5e-6, "measured")
    assert (found.disk_read_seconds, found.disk_read_kind) == (100e-6, "assumed")
    loop = Throughput(points=[], reasons=[], disk_read_seconds=2e-4, copy_seconds=1e-6)
    found = read_costs(copies, loop)
    assert (found.disk_read_seconds, found.disk_read_kind, found.copy_seconds) == (2e-4, "measured", 1e-6)
