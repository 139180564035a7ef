"""A new partition: made, filled and attached in one transaction.

The table is created like the partitioned one and filled before it is attached, so no session waits for it,
its indexes are built once, and its rows are frozen at once. A check constraint equal to the bound refuses
rows of other partitions with their line, so ATTACH PARTITION need not read the rows; then it is dropped. No
other session sees the table before the commit. A load that fails leaves nothing.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from pgsweep.errors import LacksPrivilege, UsageError
from pgsweep.load.copying import step_since
from pgsweep.load.options import LoadOptions
from pgsweep.load.table import check_primary
from pgsweep.load.way import without_wal
from pgsweep.pg.load.catalog import Catalog, KeyFacts, TriggerFacts, differences, read_catalog, read_facts
from pgsweep.pg.load.lock import Note
from pgsweep.pg.load.partition import attach_partition, make_partition, name_of_new
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.userpath import resolve_relation
from pgsweep.records.load import LoadChoice, LoadPlan, LoadStep

_GIVEN_UP: Final = (
    "the new partition is not visible until the end; the partitioned table can be used, but not altered",
    "at the end foreign keys are added and the partition is attached: until the commit, writers of the "
    "tables that it refers to wait, and so do all sessions that use the default partition, if there is one",
)


@dataclass(frozen=True)
class NewPartition:
    """A partition to be created.

    Attributes:
        parent: the partitioned table.
        catalog: of the new one, as far as it is known before it is made.
        bound: as CREATE TABLE has it after PARTITION OF: `FOR VALUES ...` or `DEFAULT`.
    """

    parent: Catalog
    catalog: Catalog
    bound: str

    def make(self, connection: Connection) -> Catalog:
        """Make the table in the transaction that is open, and return what is on it."""
        return make_partition(connection, self.parent.table, self.catalog.table, self.bound)

    def attach(self, connection: Connection, table: Catalog, note: Note) -> list[LoadStep]:
        """Add its foreign keys and attach it, in the transaction that is open."""
        begin = time.monotonic()
        attach_partition(connection, self.parent, table.table, self.bound, _keys(self.parent), note=note)
        return [step_since(f"attaching to {self.parent.table.quoted}", begin)]

    def changes(self, connection: Connection) -> list[str]:
        """Return what the partitioned table had before and does not have now; normally nothing."""
        after = read_facts(connection, self.parent.table.oid)
        return [line for line in differences(self.parent.facts, after) if line.startswith("before: ")]


def plan_partition(connection: Connection, table: str, options: LoadOptions) -> NewPartition:
    """Return the partition to be created; nothing is changed.

    Raises:
        UsageError, MissingAbility: it cannot be made.
    """
    if options.partition_of is None or options.for_values is None:
        raise UsageError(
            "--partition-of and --for-values go together",
            hint="--partition-of PARENT --for-values \"FROM ('2024-01-01') TO ('2024-02-01')\"",
        )
    parent = read_catalog(connection, resolve_relation(connection, options.partition_of))
    assert parent is not None
    firing = [trigger for trigger in parent.triggers if trigger.fires]
    _check(parent, options, firing)
    schema, name, quoted = name_of_new(connection, table, parent.table.schema)
    facts = msgspec.structs.replace(
        parent.table,
        oid=0,
        schema=schema,
        name=name,
        quoted=quoted,
        kind="r",
        is_partition=False,
        row_security=False,
        may_insert=True,
        may_lock=True,
        may_undo=True,
        table_bytes=0,
        index_bytes=0,
        rows_estimate=0,
        partitions=0,
        foreign_partitions=False,
        insert_triggers=False,
    )
    catalog = Catalog(
        table=facts,
        columns=parent.columns,
        indexes=[msgspec.structs.replace(index, kept=None, bytes=0) for index in parent.indexes],
        keys=[msgspec.structs.replace(key, kept=None) for key in _keys(parent)],
        triggers=[],
        referencing=[],
        hindrances=[found for found in parent.hindrances if found.whole],
        facts=[],
    )
    words = options.for_values.strip()
    _check_closed(words)
    whole = words.upper().startswith("FOR VALUES") or words.upper() == "DEFAULT"
    return NewPartition(parent, catalog, words if whole else f"FOR VALUES {words}")


_SPELLED: Final = re.compile("'[^']*'|\"[^\"]*\"")
"""A string or a quoted name, or a part of one with doubled quotes; parentheses in it are text."""


def _check_closed(bound: str) -> None:
    """Refuse a bound with an open parenthesis or quote: the plan does not ask the server about it.

    Raises:
        UsageError: it has one.
    """
    if "\\" in bound or "$" in bound:
        return  # A string with escapes or in dollars is the server's to read.
    left = _SPELLED.sub("", bound)
    depth = 0
    for character in left:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
    if depth or "'" in left or '"' in left:
        what = "a quote" if not depth else "a parenthesis"
        raise UsageError(
            f"{what} is not closed in the bound `{bound}`"
            if depth >= 0
            else f"a parenthesis is closed that was not opened in the bound `{bound}`",
            hint='--for-values "FROM (...) TO (...)", "IN (...)" or "WITH (modulus N, remainder M)"',
        )


def _check(parent: Catalog, options: LoadOptions, firing: list[TriggerFacts]) -> None:
    table = parent.table
    check_primary(table)
    if table.kind != "p":
        raise UsageError(f"{table.quoted} is not partitioned", hint="leave out --partition-of")
    if not table.owned:
        raise LacksPrivilege(f"only the owner of {table.quoted} may attach a partition to it")
    if table.persistence != "p":
        raise UsageError(f"{table.quoted} is not a logged table", hint="attach the partition by SQL")
    if table.published:
        raise UsageError(
            f"{table.quoted} is published",
            cause="rows that are in a partition before it is attached are not sent to subscribers",
            hint="make the partition by CREATE TABLE ... PARTITION OF, then load into it",
        )
    if firing and not options.disable_triggers:
        raise UsageError(
            f"triggers of {table.quoted} fire on INSERT: {', '.join(trigger.name for trigger in firing[:3])}",
            cause="they do not fire for rows that are in a partition before it is attached",
            hint="if they need not: --disable-triggers; else make the partition first, then load into it",
        )
    if options.unlogged or options.freeze is False:
        raise UsageError(
            "a new partition is filled in one transaction, and frozen",
            hint="leave out --unlogged and --no-freeze",
        )


def _keys(parent: Catalog) -> list[KeyFacts]:
    """Return the foreign keys that a partition is given before it is attached."""
    return [
        key for key in parent.keys if not key.to_itself and key.validate and key.kept != "it is inherited"
    ]


def partition_options(options: LoadOptions) -> LoadOptions:
    """Return the options with which the table by itself is loaded."""
    return msgspec.structs.replace(
        options,
        single_transaction=True,
        disable_triggers=False,
        freeze=True if options.max_rejects is None else None,
        indexes="drop",
    )


def partition_plan(plan: LoadPlan, partition: NewPartition) -> LoadPlan:
    """Return the plan, worded for a new partition."""
    parent = partition.parent.table.quoted
    choices_of = {"freezing": "COPY FREEZE"}
    actions = {"drop and make again": "make after the rows", "keep": "make with the table"}
    reasons = {
        "transactions": "the partition is made, filled and attached in it",
        "freezing": f"the table is made in the same transaction{without_wal(plan.wal_level)}",
    }
    objects = [
        msgspec.structs.replace(
            entry,
            action="add and validate" if entry.kind == "foreign key" else actions[entry.action],
            reason=f"as on {parent}",
            size_bytes=None,
        )
        for entry in plan.objects
    ]
    choices = [
        LoadChoice(
            what="partition", choice=partition.bound, reason=f"of {parent}; checked when the load begins"
        )
    ]
    choices += [
        msgspec.structs.replace(
            choice,
            choice=choices_of.get(choice.what, choice.choice),
            reason=reasons.get(choice.what, choice.reason),
        )
        for choice in plan.choices
    ]
    return msgspec.structs.replace(
        plan,
        kind=f"new partition of {parent}",
        objects=objects,
        choices=choices,
        given_up=list(_GIVEN_UP),
        partition_of=parent,
        bound=partition.bound,
    )
