"""What is on the table and how it is loaded: strategy, reasons, expected time, what is given up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pgsweep.errors import MissingAbility, UsageError
from pgsweep.host.machine import memory_bytes
from pgsweep.load.amount import (
    COMPRESSION,
    Amount,
    amount_of_parquet,
    amount_of_text,
    total,
)
from pgsweep.load.document import LoadDocument
from pgsweep.load.header import EMPTY, Fields, chosen_fields, strays
from pgsweep.load.names import check_columns
from pgsweep.load.objects import (
    COPY_BYTES_PER_SECOND,
    INDEX_BUILD_SECONDS,
    INDEX_BYTES_PER_ROW,
    INDEX_INSERT_SECONDS,
    KEY_VALIDATE_SECONDS,
    KINDS,
    REWRITE_BYTES_PER_SECOND,
    check_seconds,
    journal_indexes,
    journal_keys,
    which_indexes,
    which_keys,
)
from pgsweep.load.options import LoadOptions, check_options
from pgsweep.load.rows import json_columns, parquet_columns
from pgsweep.load.source import Input
from pgsweep.load.split import read_first
from pgsweep.load.table import check_table
from pgsweep.load.unlogged import GIVEN_UP, check_unlogged, unlogged_choice
from pgsweep.pg.backends import fewer_note, spared_connections
from pgsweep.pg.connect import Connection
from pgsweep.pg.load_catalog import Catalog, IndexFacts, KeyFacts, hindering
from pgsweep.pg.load_code import Code
from pgsweep.pg.load_copy import CopyTarget
from pgsweep.pg.load_journal import UNLOGGED, JournalObject
from pgsweep.pg.load_work import is_empty, unlogged_change
from pgsweep.plain import quoted_where_needed
from pgsweep.records.load import LoadChoice, LoadEstimate, LoadFile, LoadFunction, LoadObject, LoadPlan
from pgsweep.units import format_bytes, parse_bytes

_HEAP_PER_FILE_BYTE: Final = 1.2
_SMALL_BYTES: Final = 32 << 20
_MEASURED_FROM_BYTES: Final = 128 << 20
_MOST_JOBS: Final = 4
_PIECES: Final = 200
_PIECE_BYTES: Final = (8 << 20, 64 << 20)
_MEMORY_SHARE: Final = 8
_MEMORY_MOST: Final = 2 << 30
_MEMORY_REMOTE: Final = 256 << 20


def prepare(
    catalog: Catalog, inputs: Sequence[Input], options: LoadOptions, connection: Connection, code: Code
) -> tuple[LoadDocument, list[JournalObject]]:
    """Return the plan, and what is dropped or disabled, in the order in which it is made again.

    Raises:
        MissingAbility, UsageError, InputError: it cannot be loaded like this.
    """
    check_table(catalog, connection)
    table = catalog.table
    kind = inputs[0].format
    looked = _look(catalog, inputs, options)
    columns, amounts, stray = looked.columns, looked.amounts, looked.stray
    size = _total_bytes(inputs)
    records = total([amount.records for amount in amounts])
    choices = _header_choices(inputs, looked.fields)
    firing = table.insert_triggers and not options.disable_triggers
    if options.unlogged:
        check_unlogged(catalog, options, firing=firing)
        choices.append(unlogged_choice(table.wal_level))
    indexes = which_indexes(catalog, options, records)
    keys = which_keys(catalog, options, records, {index.name for index, reason in indexes if reason is None})
    dropping = any(reason is None for _, reason in indexes) or any(reason is None for _, reason in keys)
    if table.persistence == "u" and not options.single_transaction:
        # A crash empties the table, and the journal would still have the pieces.
        options = msgspec.structs.replace(options, single_transaction=True, jobs=None)
        single, why = True, "a crash empties an unlogged table, and a journal of pieces would not show that"
    else:
        single, why = _strategy(catalog, options, firing=firing, dropping=dropping, size=size)
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
    if code.functions:
        choices.append(LoadChoice(what="search_path of functions", choice=code.path, reason=code.reason))
    objects = [*journal_indexes(indexes), *journal_keys(keys)]
    if options.disable_triggers:
        objects += _disabled_triggers(catalog)
    if options.unlogged:
        objects.append(unlogged_change(table))
    objects.sort(key=lambda entry: (entry.stage, -(entry.size_bytes or 0)))
    # A piece of JSON is in memory twice, as it is read and as it is sent.
    largest = _PIECE_BYTES[0 if single or kind == "jsonl" else 1]
    piece = options.piece_bytes or max(_PIECE_BYTES[0], min(largest, (size or 0) // _PIECES))
    plan = LoadPlan(
        table=table.quoted,
        kind="partitioned table" if table.kind == "p" else "table",
        persistence="unlogged" if table.persistence == "u" else "logged",
        rows=table.rows_estimate,
        table_bytes=table.table_bytes,
        index_bytes=table.index_bytes,
        partitions=table.partitions,
        published=table.published,
        replication_slots=table.slots,
        wal_level=table.wal_level,
        columns=columns,
        format=kind,
        files=[
            LoadFile(
                path=f.path,
                size_bytes=f.size_bytes,
                compression=f.compression,
                header=None if fields is None else fields.header,
                left_out=[] if fields is None else fields.left_out,
            )
            for f, fields in zip(inputs, looked.fields, strict=True)
        ],
        objects=_shown(catalog, indexes, keys, options),
        referenced_by=catalog.referencing,
        strategy="one transaction" if single else "pieces",
        one_statement=whole is not None,
        jobs=jobs,
        freeze=freeze,
        maintenance_work_mem_bytes=memory,
        piece_bytes=piece,
        choices=choices,
        given_up=_given_up(objects, single=single),
        estimate=_estimate(
            catalog,
            indexes,
            keys,
            records,
            total([amount.read_bytes for amount in amounts]),
            minimal=freeze and table.wal_level == "minimal",
            unlogged=options.unlogged,
        ),
        notes=_notes(catalog, options, code, looked, firing=firing),
        functions=[
            LoadFunction(name=f.name, owner=f.owner, used_by=f.used_by, path=f.own_path or code.path)
            for f in code.functions
        ],
    )
    document = LoadDocument(
        table=table,
        columns=catalog.columns,
        plan=plan,
        target=_target(catalog, columns, kind, options, freeze),
        inputs=list(inputs),
        options=options,
        truncatable=catalog.truncatable,
        path=code.path,
        measure=measure,
    )
    return document, objects


@dataclass(frozen=True)
class _Looked:
    """What was seen in the files: columns, fields of text, how many records, and stray quotes."""

    columns: list[str]
    fields: list[Fields | None]
    amounts: list[Amount]
    stray: str | None


def _notes(catalog: Catalog, options: LoadOptions, code: Code, looked: _Looked, *, firing: bool) -> list[str]:
    """Return what the user must know before the load."""
    table, notes = catalog.table, list[str]()
    if looked.stray is not None:
        notes.append(
            f"quotes within unquoted fields: {looked.stray}; COPY takes every quote for the start or end "
            "of a quoted part"
        )
    if code.powerful and not table.owner_superuser:
        notes.append(
            f"triggers and defaults of role {table.owner} run with this session's rights, those of a "
            "superuser"
        )
    if code.schema_owner is not None and table.owner_superuser:
        notes.append(
            f"role {code.schema_owner} owns schema {table.schema}, and can put another table, with code of "
            "its own, in the place of this one"
        )
    if firing and not options.single_transaction:
        notes.append("triggers fire for each row; --disable-triggers loads without them")
    sequences = [c.name for c in catalog.columns if c.move_sequence and c.name in looked.columns]
    if sequences:
        notes.append(
            f"the sequence of {', '.join(map(quoted_where_needed, sequences))} is not moved by values of the "
            "files; a later INSERT may take one of them again. The result has a statement that moves it"
        )
    return notes


def _disabled_triggers(catalog: Catalog) -> list[JournalObject]:
    """Return the triggers that are disabled, and enabled again.

    Raises:
        MissingAbility, UsageError: they may not be disabled.
    """
    if not catalog.table.owned:
        raise MissingAbility(
            "only the owner of the table may disable its triggers", hint="leave out --disable-triggers"
        )
    if catalog.table.kind == "p":
        raise UsageError(
            "the triggers of partitions are not disabled",
            hint="leave out --disable-triggers, or load the partitions one by one",
        )
    return [
        JournalObject(
            kind="trigger",
            name=trigger.name,
            definition=trigger.definition,
            drop=trigger.disable,
            make=[trigger.enable],
            stage=4,
        )
        for trigger in catalog.triggers
        if trigger.fires
    ]


def _look(catalog: Catalog, inputs: Sequence[Input], options: LoadOptions) -> _Looked:
    kind = inputs[0].format
    check_options(kind, options)
    writable = [column.name for column in catalog.columns if not column.generated]
    if options.columns is not None and kind not in ("csv", "tsv"):
        check_columns(options.columns, catalog.columns, "--columns")
    if kind == "binary":
        amounts = [Amount(None, entry.size_bytes) for entry in inputs]
        return _Looked(options.columns or writable, [None] * len(inputs), amounts, None)
    found: list[list[str]] = []
    fields: list[Fields | None] = []
    amounts = []
    stray = None
    for entry in inputs:
        if kind == "parquet":
            found.append(list(parquet_columns(entry, catalog.columns, options)))
            fields.append(None)
            amounts.append(amount_of_parquet(entry))
            continue
        head = read_first(entry, options)
        seen = None
        if kind == "jsonl":
            found.append(json_columns(entry, head, catalog.columns, options))
        else:
            seen = chosen_fields(entry, head, options, catalog.columns)
            # An empty file names no columns, so it fits to any.
            found.append(seen.columns if head.data or options.columns else [])
            stray = stray or strays(entry, head, options)
        fields.append(seen)
        amounts.append(amount_of_text(entry, head, options, header=seen is not None and seen.header))
    filled = [columns for columns in found if columns]
    if any(columns != filled[0] for columns in filled):
        if kind == "jsonl":
            every = [name for name in writable if any(name in columns for columns in filled)]
            return _Looked(every, fields, amounts, stray)
        raise UsageError(
            "the files have different columns, or the same in another order",
            hint="load those that are alike at once",
        )
    return _Looked(filled[0] if filled else writable, fields, amounts, stray)


def _header_choices(inputs: Sequence[Input], fields: Sequence[Fields | None]) -> list[LoadChoice]:
    """Return what the first records of files of text were taken for."""
    found: dict[tuple[bool, str], list[str]] = {}
    for entry, one in zip(inputs, fields, strict=True):
        if one is not None:
            found.setdefault((one.header, one.why), []).append(entry.name)
    return [
        LoadChoice(
            what="first record" if len(found) == 1 else f"first record of {', '.join(names)}",
            choice="none" if why is EMPTY else "a header" if header else "a row",
            reason=why,
        )
        for (header, why), names in found.items()
    ]


def _total_bytes(inputs: Sequence[Input]) -> int | None:
    size = total([entry.size_bytes for entry in inputs])
    packed = sum(entry.size_bytes or 0 for entry in inputs if entry.compression)
    return None if size is None else round(size + packed * (COMPRESSION - 1.0))


def _strategy(
    catalog: Catalog, options: LoadOptions, *, firing: bool, dropping: bool, size: int | None
) -> tuple[bool, str]:
    if options.single_transaction:
        return True, "as asked"
    if options.unlogged:
        return False, "the journal notices a crash that empties the table"
    if options.freeze:
        return True, "rows can be frozen only in the transaction that truncated their table"
    if firing:
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


def _shown(
    catalog: Catalog,
    indexes: Sequence[tuple[IndexFacts, str | None]],
    keys: Sequence[tuple[KeyFacts, str | None]],
    options: LoadOptions,
) -> list[LoadObject]:
    shown = [
        LoadObject(
            kind=KINDS[index.constraint_type],
            name=index.name,
            definition=index.definition,
            action="keep" if reason else "drop and make again",
            reason=reason or _build_reason(catalog, index),
            size_bytes=index.bytes,
        )
        for index, reason in indexes
    ]
    shown += [
        LoadObject(
            kind="foreign key",
            name=key.name,
            definition=key.add.removesuffix(" NOT VALID"),
            action="keep" if reason else "drop, add and validate",
            reason=reason or "one join validates all rows; otherwise each key is looked up",
        )
        for key, reason in keys
    ]
    for trigger in catalog.triggers:
        off = options.disable_triggers and trigger.fires
        why = "as asked" if off else "its effects may be wanted; --disable-triggers leaves it out"
        shown.append(
            LoadObject(
                kind="trigger",
                name=trigger.name,
                definition=trigger.definition,
                action="disable and enable" if off else "keep",
                reason=why if trigger.fires else "it does not fire",
            )
        )
    return shown


def _build_reason(catalog: Catalog, index: IndexFacts) -> str:
    if index.method == "btree" and catalog.table.maintenance_workers:
        return f"a build sorts once, with up to {catalog.table.maintenance_workers} parallel workers"
    return "a build takes less time than inserts row by row"


def _given_up(objects: Sequence[JournalObject], *, single: bool) -> list[str]:
    lines = []
    if single:
        if objects:
            lines.append("other sessions can neither read nor write the table until the end")
        return lines
    if any(entry.kind == UNLOGGED for entry in objects):
        lines += GIVEN_UP
    if any(entry.stage == 0 for entry in objects):
        lines.append(
            "queries that use a dropped index read the whole table; duplicates are found at the end only"
        )
    if any(entry.definition.startswith("CREATE UNIQUE INDEX") for entry in objects):
        lines.append(
            "INSERT ... ON CONFLICT that names a dropped unique index fails; so does GROUP BY that relies "
            "on a dropped primary key"
        )
    if any(entry.stage == 2 for entry in objects):
        lines.append("foreign keys that are dropped are not checked until the end, for other sessions either")
    if any(entry.stage == 4 for entry in objects):
        lines.append("disabled triggers do not fire, for other sessions either")
    if objects:
        lines.append("writers wait while indexes are built; readers wait briefly at begin and end")
    lines.append("other sessions see the rows piece by piece")
    return lines


def _estimate(
    catalog: Catalog,
    indexes: Sequence[tuple[IndexFacts, str | None]],
    keys: Sequence[tuple[KeyFacts, str | None]],
    records: int | None,
    size: int | None,
    *,
    minimal: bool,
    unlogged: bool,
) -> LoadEstimate:
    if records is None or size is None:
        return LoadEstimate(records=None, bytes=size, seconds=None, wal_bytes=None, certainty="assumed")
    rows = records + (catalog.table.rows_estimate or 0)
    seconds = size / COPY_BYTES_PER_SECOND
    if unlogged:
        seconds += size / REWRITE_BYTES_PER_SECOND
    wal = size * _HEAP_PER_FILE_BYTE
    for _, reason in indexes:
        seconds += rows * INDEX_BUILD_SECONDS if reason is None else records * INDEX_INSERT_SECONDS
        wal += rows * INDEX_BYTES_PER_ROW if reason is None else records * 4 * INDEX_BYTES_PER_ROW
    for key, reason in keys:
        seconds += rows * KEY_VALIDATE_SECONDS if reason is None else records * check_seconds(key)
    if minimal or catalog.table.persistence == "u":
        wal = 0
    return LoadEstimate(
        records=records, bytes=size, seconds=round(seconds, 1), wal_bytes=round(wal), certainty="assumed"
    )


def _target(
    catalog: Catalog, columns: list[str], kind: str, options: LoadOptions, freeze: bool
) -> CopyTarget:
    table = catalog.table
    return CopyTarget(
        schema=table.schema,
        table=table.name,
        columns=columns,
        format={"binary": "binary", "tsv": "text"}.get(kind, "csv"),
        delimiter=options.delimiter,
        quote=options.quote,
        escape=options.escape,
        null=options.null,
        encoding=None if kind == "binary" else options.encoding or "UTF8",
        force_null=options.empty_is_null,
        freeze=freeze,
    )
