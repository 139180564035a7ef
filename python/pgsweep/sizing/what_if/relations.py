"""The relations that a what-if names, with the indexes and the TOAST table that go with them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.errors import UsageError
from pgsweep.plain import quoted_where_needed, shown
from pgsweep.sizing.snapshots.observations import Table, main_fork_blocks
from pgsweep.sizing.what_if.grammar import Asked, Insert, OfRelation, Scan, Without

_SCANNED_KINDS = frozenset("rmt")
_INDEX = "i"
_FANOUT, _MOST_LEVELS = 250, 6


@dataclass(frozen=True, kw_only=True)
class Named:
    """A relation of the evidence.

    Attributes:
        row: of the table `relations`.
        rows: that row, and those of its indexes and its TOAST table.
        indexes: of these, the rows of the indexes on the table itself.
        name: in words.
        is_table: it can be scanned from its first block to its last, and rows are added to it.
        blocks: of its main fork.
        tuples_per_block: 0 where that is not known.
    """

    row: int
    rows: tuple[int, ...]
    indexes: tuple[int, ...]
    name: str
    is_table: bool
    blocks: int
    tuples_per_block: float


def find(asked: OfRelation, relations: Table, database_oid: int) -> Named:
    """Return the relation that a sentence names.

    Raises:
        UsageError: there is none in the evidence, or more than one.
    """
    ours = np.flatnonzero(relations["db"] == database_oid)
    wanted = asked.relation
    found = [
        int(row)
        for row in ours
        if str(relations["name"][row]) == wanted[-1]
        and (len(wanted) == 1 or str(relations["schema"][row]) == wanted[0])
    ]
    said = shown(".".join(wanted))
    if not found:
        raise UsageError(
            f"the evidence knows no relation `{said}`, which the what-if `{shown(asked.text)}` names",
            cause="it is not in the database that was recorded, it was made later, or it is a partitioned "
            "table, whose partitions have the blocks",
            hint=_hint(wanted, relations, ours),
        )
    if len(found) > 1:
        schemas = [str(relations["schema"][row]) for row in found]
        raise UsageError(
            f"there are {len(found)} relations `{said}`",
            cause=f"in the schemas {', '.join(shown(schema) for schema in schemas)}",
            hint=f"name the schema too, such as {shown(schemas[0])}.{said}",
        )
    row = found[0]
    oid = int(relations["oid"][row])
    kind = str(relations["kind"][row])
    with_it = [row]
    if kind in _SCANNED_KINDS:
        with_it += [int(r) for r in ours if r != row and int(relations["table_oid"][r]) == oid]
    density = relations.get("tuples_per_block")
    return Named(
        row=row,
        rows=tuple(with_it),
        # An index of the TOAST table bears the oid of the table too, but lies in the schema pg_toast.
        indexes=tuple(
            r
            for r in with_it
            if str(relations["kind"][r]) == _INDEX and relations["schema"][r] == relations["schema"][row]
        ),
        name=str(relations["name"][row]),
        is_table=kind in _SCANNED_KINDS,
        blocks=int(main_fork_blocks(relations)[row]),
        tuples_per_block=0.0 if density is None else float(density[row]),
    )


def check_relations(asked: Sequence[Asked], relations: Table, database_oid: int) -> None:
    """Refuse sentences that contradict each other once it is known which relations they name.

    The same one may be named with its schema or without, and a table's indexes go with it.

    Raises:
        UsageError: two contradict each other, or name a relation that is not in the evidence.
    """
    named = [(one, find(one, relations, database_oid)) for one in asked if isinstance(one, OfRelation)]
    for place, (one, of_one) in enumerate(named):
        for other, of_other in named[:place]:
            both = set(of_one.rows) & set(of_other.rows)
            gone = isinstance(one, Without) or isinstance(other, Without)
            same = type(one) is type(other) and not isinstance(one, Scan | Insert)
            if both and (gone or same):
                name = shown(str(relations["name"][min(both)]))
                raise UsageError(
                    f"`{shown(other.text)}` and `{shown(one.text)}` contradict each other",
                    cause=f"both are about {name}; a table's indexes and its TOAST table go with it",
                    hint="leave one of them out, or ask for each in a run of its own",
                )


def need_table(asked: OfRelation, relation: Named) -> None:
    """Refuse a sentence that needs a table where another relation is named.

    Raises:
        UsageError: it is an index or a sequence.
    """
    if not relation.is_table:
        raise UsageError(
            f"`{shown(relation.name)}` is not a table, and `{shown(asked.text)}` needs one",
            hint="name the table; its indexes go with it where that is meant",
        )


def need_rows(asked: OfRelation, relation: Named) -> None:
    """Refuse a sentence that needs to know how many rows fit into a block where that is not known.

    Raises:
        UsageError: it is not known, or it is not a table.
    """
    need_table(asked, relation)
    if relation.tuples_per_block <= 0:
        raise UsageError(
            f"how many rows of `{shown(relation.name)}` fit into a block is not known",
            cause="neither VACUUM nor ANALYZE has seen rows in it, or the evidence is of an earlier pgsweep",
            hint=f"run VACUUM ANALYZE {shown(relation.name)}, and record again",
        )


def levels_of(blocks: int) -> int:
    """Return about how many pages a descent of a B-tree of that size reads, one for each 250-fold."""
    levels = 1
    while blocks > _FANOUT ** (levels - 1) and levels < _MOST_LEVELS:
        levels += 1
    return levels


def _hint(wanted: Sequence[str], relations: Table, ours: NDArray[np.int64]) -> str:
    """Return the nearest names; where none is near, the largest relations."""
    names = [str(relations["name"][row]) for row in ours]
    near = difflib.get_close_matches(wanted[-1], sorted(set(names)), n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(shown(quoted_where_needed(name)) for name in near)}?"
    largest = ours[np.argsort(-main_fork_blocks(relations)[ours], kind="stable")][:3]
    named = ", ".join(shown(quoted_where_needed(str(relations["name"][row]))) for row in largest)
    return f"its largest relations are {named}" if named else "it knows no relations: record again"
