"""What other sizes would have saved over a range of time, by the curves of its hours."""

from __future__ import annotations

from pgsweep.records.prediction import CurvePoint, Observed, PredictResult, Verdict
from pgsweep.records.serve import ServeCurve
from pgsweep.serve.saved import saved_by

HOUR = 3600.0


def hour(at: float, accesses: int, ratios: dict[int, tuple[float, float, float]] | None) -> ServeCurve:
    """Return the curve kept at the end of an hour in which a pool of 4 missed 10%."""
    result = None
    if ratios is not None:
        result = PredictResult(
            source="peek",
            observed=Observed(shared_buffers_bytes=4, miss_ratio=0.1, accesses=accesses, seconds=3590.0),
            points=[
                CurvePoint(shared_buffers_bytes=size, miss_ratio=ratio, low=low, high=high)
                for size, (ratio, low, high) in ratios.items()
            ],
            verdict=Verdict(level="reliable", reasons=[]),
        )
    return ServeCurve(window_seconds=3600, covered_seconds=HOUR, at=at, result=result)


def test_reads_of_the_hours_that_lie_in_the_range() -> None:
    curve = {2: (0.2, 0.18, 0.23), 4: (0.1, 0.1, 0.1), 8: (0.05, 0.04, 0.07)}
    hours = [
        hour(1 * HOUR, 1_000_000, curve),
        hour(2 * HOUR, 1_000, curve),
        hour(3 * HOUR, 2_000, {4: (0.1, 0.1, 0.1), 8: (0.02, 0.0, 0.04), 16: (0.0, 0.0, 0.0)}),
        hour(4 * HOUR, 500, None),
    ]
    found = saved_by(hours, 1.0 * HOUR, 4.0 * HOUR)
    assert found is not None
    assert (found.hours, found.seconds, round(found.reads, 6)) == (2, 7180.0, 300.0)
    assert [one.shared_buffers_bytes for one in found.sizes] == [4, 8], "sizes that each hour knows"
    today, twice = found.sizes
    assert (today.reads, today.low, today.high) == (0.0, 0.0, 0.0)
    assert [round(value, 6) for value in (twice.reads, twice.low, twice.high)] == [210.0, 150.0, 260.0]


def test_without_a_curve_nothing_is_said() -> None:
    assert saved_by([], 0.0, HOUR) is None
    assert saved_by([hour(HOUR, 500, None)], 0.0, HOUR) is None
    assert saved_by([hour(HOUR, 500, {8: (0.1, 0.1, 0.1)})], 2 * HOUR, 3 * HOUR) is None
