"""A curve of the same load with changes: relations that grow, go, stay in the pool, are scanned or written.

The rates are those fitted to the load as it is, and so are the factors that make today's misses come out as
counted. What is changed is how many pages there are, how often they are visited, and who scans them. So the
answer has the accuracy of the curve only as far as the change is as described; nothing shows whether it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.snapshots.curve import PASS_SCALES, REGULARITY, Curve, Flow, Side
from pgsweep.sizing.snapshots.observations import Group
from pgsweep.sizing.snapshots.rates import Rates

if TYPE_CHECKING:
    from pgsweep.sizing.snapshots.fitted import Fit

Floats = NDArray[np.float64]

_HAND_VISITS = 5.5
"""Clock passes that a new page stays for: filled row by row it is at usage_count 5, and the hand comes first
after half a pass on average."""


@dataclass(frozen=True, kw_only=True)
class RelationChange:
    """What is changed of a relation.

    Attributes:
        left_out: nothing of it is accessed.
        kept: all of it is in the pool at all times.
        growth: this many times the blocks; each visit goes to one of the blocks that its block becomes.
        scans_per_second: besides those of today.
        blocks: of the main fork, grown.
        new_blocks_per_second: made at its end.
        new_accesses_per_second: to these.
        visits_per_second: besides those of today, at pages as today's are.
        visit_accesses: of each of these.
    """

    left_out: bool = False
    kept: bool = False
    growth: float = 1.0
    scans_per_second: float = 0.0
    blocks: float = 0.0
    new_blocks_per_second: float = 0.0
    new_accesses_per_second: float = 0.0
    visits_per_second: float = 0.0
    visit_accesses: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Changes:
    """All changes.

    Attributes:
        relations: by row of the evidence's table; each of these gets a group of its own.
        load: all that happens today happens this many times as often.
        extensions_are_reads: a new block counts as a miss (before 16).
    """

    relations: Mapping[int, RelationChange] = field(default_factory=dict)
    load: float = 1.0
    extensions_are_reads: bool = False

    def growth(self, today: Floats, groups: Sequence[Group], sampling_rate: float) -> Floats:
        """Return new blocks per second of each group, of the sample.

        Args:
            today: without the changes.
            groups: of pages.
        """
        of = [self.of(group) for group in groups]
        stays = np.array([0.0 if change.left_out else 1.0 for change in of])
        added = np.array([change.new_blocks_per_second for change in of])
        return np.asarray(today * stays * self.load + added * sampling_rate)

    def dirty(self, today: Floats, fit: Fit, groups: Sequence[Group], sampling_rate: float) -> Floats:
        """Return which part of each group's pages is dirty when it is about to be evicted.

        Of a table to which rows are added all new pages are, of an index at least the share of the visits
        that write.

        Args:
            today: without the changes.
            fit: the load as it is.
            groups: of pages.
        """
        found = today.copy()
        for number, group in enumerate(groups):
            change = self.of(group)
            if change.new_blocks_per_second > 0:
                new = change.new_blocks_per_second * sampling_rate
                read = fit.curve.flows[number].misses * self.load
                found[number] = (new + read * found[number]) / (new + read)
            elif change.visits_per_second > 0:
                own = fit.curve.sides[number].own
                visits = float(fit.pages[number] @ own) / fit.curve.pass_seconds * self.load / sampling_rate
                share = change.visits_per_second / (visits + change.visits_per_second)
                found[number] = max(found[number], share)
        return found

    def of(self, group: Group) -> RelationChange:
        """Return the change of a group."""
        alone = group.relations[0] if len(group.relations) == 1 else -1
        return self.relations.get(alone, RelationChange())

    def accesses_per_second(
        self, today: float, groups: Sequence[Group], flows: Sequence[Flow], sampling_rate: float
    ) -> float:
        """Return the accesses of the database with all changes.

        Args:
            today: without them.
            groups: of pages; `flows` of each, per second and only of the blocks that were sampled.
        """
        found, added = today, 0.0
        for group, flow in zip(groups, flows, strict=True):
            change = self.of(group)
            if change.left_out:
                found -= flow.accesses / sampling_rate
                continue
            found += (change.growth - 1) * flow.scan_accesses / sampling_rate
            added += change.scans_per_second * change.blocks + change.new_accesses_per_second
            # The access that makes a block is counted before 16 only.
            added -= 0.0 if self.extensions_are_reads else change.new_blocks_per_second
            added += change.visits_per_second * change.visit_accesses
        return max(found, 0.0) * self.load + added

    def scan_share(
        self, share: float, today: float, then: float, groups: Sequence[Group], flows: Sequence[Flow]
    ) -> float:
        """Return the share of scans among the accesses.

        Args:
            share: without the changes; `today` the accesses per second then.
            then: accesses per second with them.
            groups: of pages; `flows` of each.
        """
        found = share * today
        added = 0.0
        for group, flow in zip(groups, flows, strict=True):
            change = self.of(group)
            part = flow.scan_accesses / max(sum(one.scan_accesses for one in flows), 1e-9) * share * today
            found += part * (-1.0 if change.left_out or change.kept else change.growth - 1)
            added += change.scans_per_second * change.blocks * (0.0 if change.kept else 1.0)
        return min(max((found * self.load + added) / max(then, 1e-9), 0.0), 1.0)


class ChangedCurve(Curve):
    """The curve with changes; what it inherits is of the load as it is.

    Args:
        rates, flows, observed_blocks, pass_seconds, seconds: as for `Curve`.
        regularity, ring_blocks, settled_seconds: likewise.
        changes: what is changed of each group.
        load: all that happens today happens this many times as often.
        sampling_rate: share of blocks that groups and flows are of.
        extensions_are_reads: a new block counts as a miss.
    """

    def __init__(
        self,
        rates: list[Rates],
        flows: list[Flow],
        observed_blocks: int,
        pass_seconds: float,
        seconds: float,
        *,
        changes: Sequence[RelationChange],
        load: float,
        sampling_rate: float,
        extensions_are_reads: bool,
        regularity: float = REGULARITY,
        ring_blocks: Callable[[int], int] = lambda _: 0,
        settled_seconds: float = float("inf"),
    ) -> None:
        super().__init__(
            rates,
            flows,
            observed_blocks,
            pass_seconds,
            seconds,
            regularity=regularity,
            ring_blocks=ring_blocks,
            settled_seconds=settled_seconds,
        )
        self._changes = changes
        self._rate = sampling_rate
        self._new_count = 1.0 if extensions_are_reads else 0.0
        self._changed: list[Side] = []
        for group, side, change in zip(rates, self.sides, changes, strict=True):
            flow, own = side.flow, side.own * load / change.growth
            visits = float(group.pages @ side.own) * load / pass_seconds
            if change.visits_per_second > 0 and visits > 0:
                own = own * (1 + change.visits_per_second * sampling_rate / visits)
            blocks = flow.scanned_blocks * change.growth
            if change.scans_per_second > 0:
                blocks = change.blocks * sampling_rate
            scans = flow.scans * load + change.scans_per_second
            # Those that are added come at equal intervals.
            added = change.scans_per_second / max(scans, 1e-12)
            flow = replace(flow, extensions=flow.extensions * load, scans=scans, scanned_blocks=blocks)
            self._changed.append(self.side(group, flow, own, regularity + (1 - regularity) * added))

    @property
    def _sides_at_any_size(self) -> list[Side]:
        """Return what visits and scans make of each group, with its change."""
        return self._changed

    @property
    def simulated_sides(self) -> list[Side]:
        """Return each group with its change; what is left out or always in the pool is not scanned."""
        return [
            replace(side, flow=replace(side.flow, scans=0.0)) if change.left_out or change.kept else side
            for change, side in zip(self._changes, self._changed, strict=True)
        ]

    def simulated_pages(self, pages: list[Floats]) -> list[Floats]:
        """Return the pages of each group with its change: none of what is left out or always in the pool."""
        return [
            group * (0.0 if change.left_out or change.kept else change.growth)
            for change, group in zip(self._changes, pages, strict=True)
        ]

    def _by_pass(self, pages: list[Floats], blocks: int) -> tuple[Floats, Floats]:
        """Return resident pages and misses per second by time of a clock pass, with the changes."""
        resident = np.zeros(len(PASS_SCALES))
        misses = np.zeros(len(PASS_SCALES))
        resident_today = 0.0
        for index, (side, group_pages) in enumerate(zip(self.sides, pages, strict=True)):
            resident_today += self.resident_today(side, group_pages)
            change = self._changes[index]
            if change.left_out:
                continue
            new = change.new_blocks_per_second * self._rate
            misses += new * self._new_count
            grown = group_pages * change.growth
            if change.kept:
                resident += float(grown.sum())
                misses += self._changed[index].flow.extensions
                continue
            resident += new * self.pass_seconds * PASS_SCALES * _HAND_VISITS
            factor = self.factor(index, group_pages)
            there, missed = self.of_side(self._changed[index], grown, blocks, factor)
            resident += there
            misses += missed
        resident += self.observed_blocks - resident_today
        return resident, misses

    def kept_blocks(self, pages: list[Floats]) -> float:
        """Return how many of the sampled blocks are in the pool at all times."""
        kept = zip(self._changes, pages, strict=True)
        return sum(float(group.sum()) * change.growth for change, group in kept if change.kept)
