"""What other sizes of shared_buffers would have saved over a range of time, by the curves of its hours."""

from __future__ import annotations

from collections.abc import Sequence

from pgsweep.records.prediction import PredictResult
from pgsweep.records.serve import ServeCurve, ServeSaved, ServeSavedSize


def saved_by(hours: Sequence[ServeCurve], begin: float, end: float) -> ServeSaved | None:
    """Return the reads that each size would have saved, summed over the hours; None where none has a curve.

    The bounds of hours are summed too: the curve of one hour may err as that of the next does.

    Args:
        hours: curves that were kept, each of the time before it.
        begin, end: the range; an hour belongs to it with its middle.
    """
    known = [
        one.result
        for one in hours
        if one.result is not None and one.result.points and begin <= one.at - one.covered_seconds / 2 <= end
    ]
    if not known:
        return None
    of_all = set.intersection(*({point.shared_buffers_bytes for point in one.points} for one in known))
    return ServeSaved(
        hours=len(known),
        seconds=sum(one.observed.seconds for one in known),
        reads=sum(one.observed.accesses * one.observed.miss_ratio for one in known),
        sizes=[_saved_at(size, known) for size in sorted(of_all)],
    )


def _saved_at(size_bytes: int, hours: Sequence[PredictResult]) -> ServeSavedSize:
    saved = low = high = 0.0
    for one in hours:
        point = next(point for point in one.points if point.shared_buffers_bytes == size_bytes)
        accesses, today = one.observed.accesses, one.observed.miss_ratio
        saved += accesses * (today - point.miss_ratio)
        low += accesses * (today - point.high)
        high += accesses * (today - point.low)
    return ServeSavedSize(shared_buffers_bytes=size_bytes, reads=saved, low=low, high=high)
