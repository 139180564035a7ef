"""What-ifs as changes of rates that were fitted to snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pgsweep.errors import UsageError
from pgsweep.plain import shown
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
    sizes_of,
)

if TYPE_CHECKING:
    from pgsweep.evidence.schema import EvidenceMeta
    from pgsweep.sizing.snapshots.observations import Table
    from pgsweep.sizing.what_if.changed_curve import Changes, RelationChange


def changes_of(asked: Sequence[Asked], relations: Table, meta: EvidenceMeta) -> Changes:
    """Return the changes of the load that sentences ask for.

    Raises:
        UsageError: a relation is not in the evidence, or such a question cannot be asked of it.
    """
    from pgsweep.sizing.what_if.changed_curve import Changes, RelationChange

    found: dict[int, RelationChange] = {}
    blocks = sizes_of(relations).astype(float)
    named = [(one, find(one, relations, meta.database_oid)) for one in asked if isinstance(one, OfRelation)]
    # A scan reads what its table has grown to.
    for one, relation in sorted(named, key=lambda pair: not isinstance(pair[0], Grows)):
        if isinstance(one, Grows):
            blocks[list(relation.rows)] *= one.factor
        for row in relation.rows:
            before = found.get(row, RelationChange())
            found[row] = _changed(before, one, relation, row, float(blocks[row]))
    load = next((one.factor for one in asked if isinstance(one, Connections)), 1.0)
    _refuse_empty_tables(named, blocks.tolist())
    return Changes(relations=found, load=load, extensions_are_reads=meta.server_version_num < 160000)


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
