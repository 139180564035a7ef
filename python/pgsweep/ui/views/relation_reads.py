"""What each relation gains from more shared_buffers: a table of disk reads saved for each added gigabyte."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from pgsweep.plain import shown
from pgsweep.records.prediction import RelationCurve, RelationReads
from pgsweep.ui.kit.numbers import count, format_bytes
from pgsweep.ui.kit.section import Section
from pgsweep.ui.kit.table import PREDICTED, Cell, Column, Table

_GB: Final = 1 << 30
_MOST_SIZES: Final = 7


def relations_section(curves: Sequence[RelationCurve], keep: Sequence[int]) -> Section | None:
    """Return the section, or None unless two sizes are known for all of them.

    Args:
        curves: of the relations, at the same sizes.
        keep: sizes that must be among those shown; the first is today's.
    """
    known = [{point.shared_buffers_bytes for point in curve.points} for curve in curves]
    sizes = _shown_sizes(sorted(set.intersection(*known)) if known else [], keep)
    if len(sizes) < 2:
        return None
    today = keep[0] if keep and keep[0] in sizes else sizes[0]
    at = format_bytes(today)

    def point(curve: RelationCurve, size: int) -> RelationReads:
        return next(point for point in curve.points if point.shared_buffers_bytes == size)

    def reads(curve: RelationCurve) -> Cell:
        now = point(curve, today)
        interval = f"{count(now.disk_reads_low)} to {count(now.disk_reads_high)}"
        return Cell(count(now.disk_reads_per_second), interval)

    def step(small: int, large: int) -> Column[RelationCurve]:
        title = f"{format_bytes(small)} to {format_bytes(large)}"
        return Column(title, lambda curve: _gain(point(curve, small), point(curve, large)), group=PREDICTED)

    columns: list[Column[RelationCurve]] = [
        Column("relation", lambda curve: shown(curve.name), left=True),
        Column(f"disk reads per second at {at}", reads, group=PREDICTED),
        *(step(small, large) for small, large in pairwise(sizes)),
    ]
    return Section(
        title="What each relation gains",
        ident="relations",
        lead=(
            f"Disk reads per second at {at}, and how many of them each added gigabyte of the pool saves "
            "from one size to the next; less than 0 where the page cache loses more than the pool gains. "
            "Below each number its 90% interval."
        ),
        table=Table(columns, curves),
    )


def _gain(small: RelationReads, large: RelationReads) -> Cell:
    added = (large.shared_buffers_bytes - small.shared_buffers_bytes) / _GB
    saved = (small.disk_reads_per_second - large.disk_reads_per_second) / added
    least = (small.disk_reads_low - large.disk_reads_high) / added
    most = (small.disk_reads_high - large.disk_reads_low) / added
    return Cell(_whole(saved), f"{_whole(least)} to {_whole(most)}")


def _whole(value: float) -> str:
    return count(round(value)) if abs(value) >= 1 else "0"


def _shown_sizes(sizes: Sequence[int], keep: Sequence[int]) -> list[int]:
    """Return at most some of the sizes, spread evenly, those that must be there among them."""
    if len(sizes) <= _MOST_SIZES:
        return list(sizes)
    step = (len(sizes) - 1) / (_MOST_SIZES - 1)
    chosen = {sizes[round(index * step)] for index in range(_MOST_SIZES)}
    return sorted(chosen | {size for size in keep if size in sizes})
