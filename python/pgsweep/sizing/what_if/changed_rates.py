"""What-ifs as changes of rates that were fitted to snapshots: how many pages, how often visited, who scans.

Relations grow, go, stay in the pool, are scanned or written. Nothing in the evidence shows whether the change
is as it is described.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pgsweep.errors import UsageError
from pgsweep.plain import shown
from pgsweep.sizing.snapshots.observations import Table, main_fork_blocks
from pgsweep.sizing.what_if.grammar import (
    Asked,
    Connections,
    Grows,
    Insert,
    Keep,
    OfRelation,
    Scan,
    Without,
)
from pgsweep.sizing.what_if.relations import (
    Named,
    find,
    levels_of,
    need_rows,
    need_table,
)

if TYPE_CHECKING:
    from pgsweep.sizing.snapshots.load import Load

Floats = NDArray[np.float64]


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
class LoadChange:
    """All that is changed of a load.

    Attributes:
        groups: what is changed of each group of pages.
        factor: all that happens today happens this many times as often.
    """

    groups: list[RelationChange]
    factor: float

    def growth(self, load: Load) -> Floats:
        """Return new blocks per second of each group, of the sample."""
        rate = load.pool.sampling_rate
        stays = np.array([0.0 if change.left_out else 1.0 for change in self.groups])
        added = np.array([change.new_blocks_per_second for change in self.groups])
        return np.asarray(load.growth * rate * stays * self.factor + added * rate)

    def dirty(self, load: Load, visits_per_second: Floats) -> Floats:
        """Return which part of each group's pages is dirty when it is about to be evicted.

        Of a table to which rows are added all new pages are, of an index at least the share of the visits
        that write.

        Args:
            load: as it is.
            visits_per_second: of each group as it is, of the sample.
        """
        found, rate = load.dirty.copy(), load.pool.sampling_rate
        for number, change in enumerate(self.groups):
            if change.new_blocks_per_second > 0:
                new = change.new_blocks_per_second * rate
                read = load.pool.flows[number].misses * self.factor
                found[number] = (new + read * found[number]) / (new + read)
            elif change.visits_per_second > 0:
                visits = float(visits_per_second[number]) * self.factor / rate
                share = change.visits_per_second / (visits + change.visits_per_second)
                found[number] = max(found[number], share)
        return found

    def accesses_per_second(self, load: Load) -> float:
        """Return the accesses of the database with the change."""
        found, added, rate = load.accesses_per_second, 0.0, load.pool.sampling_rate
        for change, flow in zip(self.groups, load.pool.flows, strict=True):
            if change.left_out:
                found -= flow.accesses / rate
                continue
            found += (change.growth - 1) * flow.scan_accesses / rate
            added += change.scans_per_second * change.blocks + change.new_accesses_per_second
            # The access that makes a block is counted before 16 only.
            added -= 0.0 if load.pool.extensions_are_reads else change.new_blocks_per_second
            added += change.visits_per_second * change.visit_accesses
        return max(found, 0.0) * self.factor + added

    def scan_share(self, load: Load, share: float) -> float:
        """Return the share of scans among the accesses, given that without the change."""
        today, flows = load.accesses_per_second, load.pool.flows
        found = share * today
        added = 0.0
        for change, flow in zip(self.groups, flows, strict=True):
            part = flow.scan_accesses / max(sum(one.scan_accesses for one in flows), 1e-9) * share * today
            found += part * (-1.0 if change.left_out or change.kept else change.growth - 1)
            added += change.scans_per_second * change.blocks * (0.0 if change.kept else 1.0)
        accesses = self.accesses_per_second(load)
        return min(max((found * self.factor + added) / max(accesses, 1e-9), 0.0), 1.0)


def load_change(asked: Sequence[Asked], load: Load) -> LoadChange:
    """Return the change of a load that sentences ask for; each relation that they name is a group there.

    Raises:
        UsageError: as `relation_changes`.
    """
    rows = relation_changes(asked, load.relations, load.server.database_oid)
    alone = [group.relations[0] if len(group.relations) == 1 else -1 for group in load.groups]
    return LoadChange(
        groups=[rows.get(row, RelationChange()) for row in alone],
        factor=next((one.factor for one in asked if isinstance(one, Connections)), 1.0),
    )


def relation_changes(
    asked: Sequence[Asked], relations: Table, database_oid: int
) -> dict[int, RelationChange]:
    """Return what sentences change of relations, by row of their table.

    Raises:
        UsageError: a relation is not in the evidence, or such a question cannot be asked of it.
    """
    found: dict[int, RelationChange] = {}
    blocks = main_fork_blocks(relations).astype(float)
    named = [(one, find(one, relations, database_oid)) for one in asked if isinstance(one, OfRelation)]
    # A scan reads what its table has grown to.
    for one, relation in sorted(named, key=lambda pair: not isinstance(pair[0], Grows)):
        if isinstance(one, Grows):
            blocks[list(relation.rows)] *= one.factor
        for row in relation.rows:
            before = found.get(row, RelationChange())
            found[row] = _changed(before, one, relation, row, float(blocks[row]))
    _refuse_empty_tables(named, blocks.tolist())
    return found


def _changed(
    change: RelationChange, one: OfRelation, relation: Named, row: int, blocks: float
) -> RelationChange:
    change = replace(change, blocks=blocks)
    if isinstance(one, Grows):
        return replace(change, growth=one.factor)
    if isinstance(one, Keep):
        return replace(change, kept=True)
    if isinstance(one, Without):
        return replace(change, left_out=True)
    if isinstance(one, Scan):
        need_table(one, relation)
        if row != relation.row:
            return change
        return replace(change, scans_per_second=change.scans_per_second + 1 / one.every_seconds)
    assert isinstance(one, Insert)
    need_rows(one, relation)
    if row == relation.row:
        return replace(
            change,
            new_blocks_per_second=change.new_blocks_per_second
            + one.rows_per_second / relation.tuples_per_block,
            new_accesses_per_second=change.new_accesses_per_second + one.rows_per_second,
        )
    if row not in relation.indexes:
        return change
    return replace(
        change,
        visits_per_second=change.visits_per_second + one.rows_per_second,
        visit_accesses=float(levels_of(round(blocks))),
    )


def _refuse_empty_tables(named: Sequence[tuple[OfRelation, Named]], blocks: Sequence[float]) -> None:
    for one, relation in named:
        if isinstance(one, Scan) and blocks[relation.row] < 1:
            raise UsageError(
                f"`{shown(relation.name)}` has no blocks, so `{shown(one.text)}` reads nothing",
                hint="name a table with rows in it",
            )
