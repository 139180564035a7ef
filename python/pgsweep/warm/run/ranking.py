"""What to read, in which order, and what does not fit: a pure function of relations, their heat and a budget.

What has the most accesses for its size comes first, whatever it is: a block spares the more reads the more
often it is asked for. Among equals indexes come before tables. After them come, in the same order, those of
which statistics show that less than half is in use (used_part.py). What a heat file knows comes before what
only statistics know, as the two measures cannot be compared. Where nothing is known the smallest relations
come first, catalogs after all others: if each is used as often as any other, they have the most accesses for
their size. Last comes what statistics never saw read, whatever it is, and an index that no query has used:
only insertions read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from pgsweep.records.rollup import SYSTEM_SCHEMAS
from pgsweep.units import format_count, format_percent
from pgsweep.warm.block_ranges import BlockRange

INDEX_KINDS = ("index", "TOAST index")


@dataclass(slots=True)
class Plan:
    """Disjoint ranges of blocks: those to be read, in order, and those that do not fit."""

    ranges: list[BlockRange] = field(default_factory=list)
    left_out: list[BlockRange] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        """How many blocks are to be read."""
        return sum(each.blocks for each in self.ranges)


def make_plan(wanted: Iterable[BlockRange], budget_blocks: int) -> Plan:
    """Return the part of the wanted ranges to read, in order.

    Args:
        wanted: in any order; blocks that are wanted twice are read once, where they are hottest. A `heat` of
            None is one that is not known, 0 one that is known to be none.
        budget_blocks: that are read at most. The range that does not fit whole is cut.
    """
    plan = Plan()
    taken: dict[tuple[str, int, str], _Intervals] = {}
    room = max(0, budget_blocks)
    for one in sorted((each for each in wanted if each.blocks > 0), key=rank):
        covered = taken.setdefault((one.database, one.oid, one.fork), _Intervals())
        for first, end in covered.add(one.first_block, one.end_block):
            fits = min(room, end - first)
            if fits:
                plan.ranges.append(_part(one, first, first + fits))
                room -= fits
            if first + fits < end:
                plan.left_out.append(_part(one, first + fits, end))
    return plan


def rank(one: BlockRange) -> tuple[bool, bool, bool, float, bool, int, bool, str, int, str, int]:
    """Return what ranges are ordered by: a smaller one is read before."""
    return (
        one.heat == 0,
        not one.saved,
        one.partly,
        -(one.heat or 0.0),
        one.heat is None and one.schema in SYSTEM_SCHEMAS,
        one.relation_blocks if one.heat is None else 0,
        one.kind not in INDEX_KINDS,
        one.database,
        one.oid,
        one.fork,
        one.first_block,
    )


def beyond(plan: Plan, budget_blocks: int) -> Plan:
    """Return a plan for another cache of what this plan leaves out, in the same order."""
    return make_plan(plan.left_out, budget_blocks)


def reason(
    kind: str,
    heat: float | None,
    *,
    saved: bool = False,
    of_table: bool = False,
    unsaved: bool = False,
    used_at_most: float | None = None,
) -> str:
    """Return in words why a relation has its place.

    Args:
        kind: of the relation.
        heat: of one of its blocks.
        saved: the heat is that of a heat file.
        of_table: the heat is its table's.
        unsaved: there is a heat file, and it does not hold the relation.
        used_at_most: the share of its blocks that may be in use, where it comes later for that.
    """
    what = "index" if kind in INDEX_KINDS else kind
    if unsaved:
        what += "; not in the heat file"
    if heat is None:
        return f"{what}; no statistics of its use"
    times = format_count(heat)
    if saved:
        return f"{what}; saved usage a block: {times}"
    if heat == 0:
        used = "used by a query" if kind in INDEX_KINDS else "read"
        return f"{what}; never {used} since statistics began, so last"
    if of_table:
        return f"{what}; neither it nor its table was used yet, so as hot as the table: {times}"
    words = f"{what}; accesses a block: {times}"
    if used_at_most is None:
        return words
    whose = "its" if kind in INDEX_KINDS else "its indexes'"
    share = format_percent(max(used_at_most, 0.01))
    return f"{words}; at most {share} of {whose} blocks in use, so after what is used whole"


def _part(one: BlockRange, first: int, end: int) -> BlockRange:
    if (first, end) == (one.first_block, one.end_block):
        return one
    return msgspec.structs.replace(one, first_block=first, blocks=end - first)


class _Intervals:
    """Which blocks of one fork are in the plan already."""

    def __init__(self) -> None:
        self._parts: Sequence[tuple[int, int]] = []

    def add(self, first: int, end: int) -> list[tuple[int, int]]:
        """Add the blocks from first to before end; return the stretches that were not there before."""
        new: list[tuple[int, int]] = []
        at = first
        for begin, stop in self._parts:
            if begin > at:
                new.append((at, min(begin, end)))
            at = max(at, stop)
            if at >= end:
                break
        if at < end:
            new.append((at, end))
        new = [(a, b) for a, b in new if a < b]
        self._parts = sorted([*self._parts, *new])
        return new
