"""How the rows of a load are copied, and why: transactions, statements, sessions, freezing, memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pgsweep.errors import UsageError
from pgsweep.host.machine import memory_bytes
from pgsweep.load.amount import COMPRESSION
from pgsweep.load.input.source import Input
from pgsweep.load.options import LoadOptions
from pgsweep.load.unlogged import unlogged_choice
from pgsweep.pg.catalog.backends import fewer_note, spared_connections
from pgsweep.pg.load.catalog import Catalog, hindering
from pgsweep.pg.load.work import is_empty
from pgsweep.pg.session.connect import Connection
from pgsweep.records.load import LoadChoice
from pgsweep.records.rollup import total
from pgsweep.units import format_bytes, parse_bytes

_SMALL_BYTES: Final = 32 << 20
_MEASURED_FROM_BYTES: Final = 128 << 20
_MOST_JOBS: Final = 4
_PIECES: Final = 200
_PIECE_BYTES: Final = (8 << 20, 64 << 20)
_MEMORY_SHARE: Final = 8
_MEMORY_MOST: Final = 2 << 30
_MEMORY_REMOTE: Final = 256 << 20


@dataclass(frozen=True)
class Way:
    """How the rows are copied, with a choice to show for each decision.

    Attributes:
        options: as they are after what an unlogged table demands.
        single: in one transaction.
        one_statement: one COPY for each file.
        measure: whether more than one session is faster is measured first.
    """

    options: LoadOptions
    single: bool
    one_statement: bool
    freeze: bool
    jobs: int
    measure: bool
    memory_bytes: int
    piece_bytes: int
    choices: list[LoadChoice]


def decide_way(
    catalog: Catalog,
    inputs: Sequence[Input],
    options: LoadOptions,
    connection: Connection,
    *,
    stray: str | None,
    dropping: bool,
) -> Way:
    """Decide how the rows are copied.

    Args:
        stray: quotes within unquoted fields, where there are any.
        dropping: whether indexes or foreign keys are dropped meanwhile.

    Raises:
        UsageError: the options ask for what is not possible here.
    """
    table, size = catalog.table, _total_bytes(inputs)
    choices = [unlogged_choice(table.wal_level)] if options.unlogged else []
    if table.persistence == "u" and not options.single_transaction:
        # A crash empties the table, and the journal would still have the pieces.
        options = msgspec.structs.replace(options, single_transaction=True, jobs=None)
        single, why = True, "a crash empties an unlogged table, and a journal of pieces would not show that"
    else:
        single, why = _strategy(catalog, options, dropping=dropping, size=size)
    choices.append(
        LoadChoice(what="transactions", choice="one" if single else "many, with a journal", reason=why)
    )
    whole = _seen_whole(catalog, options, inputs)
    if whole is not None:
        choices.append(LoadChoice(what="statements", choice="one COPY for each file", reason=whole))
    freeze = _freezes(catalog, options, single=single, dropping=dropping)
    # A partition that is to be made has no oid yet.
    if freeze and table.oid and not is_empty(connection, table):
        freeze = False
        if options.freeze:
            choices.append(LoadChoice(what="freezing", choice="none", reason="the table has rows"))
    elif freeze:
        why = f"the table is empty, and truncated in the same transaction{without_wal(table.wal_level)}"
        choices.append(LoadChoice(what="freezing", choice="COPY FREEZE", reason=why))
    jobs, measure, why = _jobs(connection, options, inputs, single=single, size=size, stray=stray)
    sessions = f"1 or {jobs}, measured while the first pieces are copied" if measure else str(jobs)
    choices.append(LoadChoice(what="sessions", choice=sessions, reason=why))
    memory = _memory(catalog, options, connection.info.host)
    if dropping:
        why = "given" if options.maintenance_work_mem_bytes else "a share of the memory, for all builds"
        choices.append(LoadChoice(what="maintenance_work_mem", choice=format_bytes(memory), reason=why))
    # A piece of JSON is in memory twice, as it is read and as it is sent.
    largest = _PIECE_BYTES[0 if single or inputs[0].format == "jsonl" else 1]
    piece = options.piece_bytes or max(_PIECE_BYTES[0], min(largest, (size or 0) // _PIECES))
    return Way(options, single, whole is not None, freeze, jobs, measure, memory, piece, choices)


def fires(catalog: Catalog, options: LoadOptions) -> bool:
    """Return whether triggers on INSERT fire during the load."""
    return catalog.table.insert_triggers and not options.disable_triggers


def _total_bytes(inputs: Sequence[Input]) -> int | None:
    size = total([entry.size_bytes for entry in inputs])
    packed = sum(entry.size_bytes or 0 for entry in inputs if entry.compression)
    return None if size is None else round(size + packed * (COMPRESSION - 1.0))


def _strategy(
    catalog: Catalog, options: LoadOptions, *, dropping: bool, size: int | None
) -> tuple[bool, str]:
    if options.single_transaction:
        return True, "as asked"
    if options.unlogged:
        return False, "the journal notices a crash that empties the table"
    if options.freeze:
        return True, "rows can be frozen only in the transaction that truncated their table"
    if fires(catalog, options):
        return True, "what triggers do elsewhere could not be undone piece by piece"
    for what in hindering(catalog.hindrances, triggers_off=options.disable_triggers):
        return True, f"pieces could be seen, or not be undone alone: {what}"
    asked = options.keep_on_failure or options.max_rejects is not None or (options.jobs or 1) > 1
    if not asked and not dropping and size is not None and size <= _SMALL_BYTES:
        return True, "the files are small, and nothing is dropped"
    if not catalog.table.may_undo:
        return True, "this role may not remove rows of the table again"
    if not catalog.table.may_create and options.indexes != "drop":
        return True, "this role may not create a schema for the journal"
    return (
        False,
        "each piece and its entry in the journal are one transaction, so the load can be resumed or undone",
    )


def _seen_whole(catalog: Catalog, options: LoadOptions, inputs: Sequence[Input]) -> str | None:
    """Return what sees how rows are divided among statements, if anything does.

    Raises:
        UsageError: a file would have to be read again, and cannot be.
    """
    fires = [
        found.what
        for found in catalog.hindrances
        if found.whole and not (options.disable_triggers and found.trigger)
    ]
    once = next((entry for entry in inputs if entry.identity is None), None)
    if fires and options.max_rejects is not None and once is not None:
        raise UsageError(
            f"{once.name} can be read only once, and --rejects would read it again",
            cause=f"the rows must be one statement: {fires[0]}",
            hint="write it to a file first, or leave out --rejects",
        )
    return fires[0] if fires else None


def without_wal(wal_level: str) -> str:
    """Return the note that no WAL is written for a table made or truncated in the transaction, if so."""
    return ", and with wal_level=minimal no WAL is written for it" if wal_level == "minimal" else ""


def _freezes(catalog: Catalog, options: LoadOptions, *, single: bool, dropping: bool) -> bool:
    table = catalog.table
    possible = (
        single
        and catalog.truncatable
        and not table.is_partition
        and options.max_rejects is None
        and options.freeze is not False
    )
    if options.freeze:
        if not possible:
            raise UsageError(
                f"rows of {table.quoted} cannot be frozen at once",
                cause="COPY FREEZE needs a table truncated in the same transaction: a plain table that this "
                "role owns and no other table refers to, loaded without --rejects",
                hint="leave out --freeze",
            )
        return True
    return possible and dropping


def _jobs(
    connection: Connection,
    options: LoadOptions,
    inputs: Sequence[Input],
    *,
    single: bool,
    size: int | None,
    stray: str | None,
) -> tuple[int, bool, str]:
    """Return the sessions, whether to measure first, and why."""
    if single:
        if options.single_transaction and options.jobs is not None and options.jobs > 1:
            raise UsageError("one transaction has one session", hint="leave out --jobs")
        return 1, False, "one transaction has one session"
    if stray is not None:
        return 1, False, "the quoting of the file is not strict"
    if inputs[0].format == "binary":
        return 1, False, "in COPY's binary format records cannot be found without reading all fields"
    wanted = options.jobs or max(1, min(_MOST_JOBS, os.cpu_count() or 1))
    many = spared_connections(connection, wanted)
    if options.jobs is not None:
        return many, False, "as asked" if many == wanted else fewer_note(many, wanted)
    if size is not None and size < _MEASURED_FROM_BYTES:
        return 1, False, "the files are too small to gain from more"
    if many == 1:
        return 1, False, "this machine has one processor" if wanted == 1 else fewer_note(many, wanted)
    return many, inputs[0].identity is not None, "more are used only where they are faster"


def _memory(catalog: Catalog, options: LoadOptions, host: str) -> int:
    if options.maintenance_work_mem_bytes is not None:
        return options.maintenance_work_mem_bytes
    local = host == "" or host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")
    share = min(_MEMORY_MOST, memory_bytes() // _MEMORY_SHARE) if local else _MEMORY_REMOTE
    return max(share, parse_bytes(catalog.table.maintenance_work_mem))
