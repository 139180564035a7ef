"""What is on the table and how it is loaded: strategy, reasons, expected time, what is given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pgsweep.errors import LacksPrivilege, UsageError
from pgsweep.load.amount import Amount, amount_of_parquet, amount_of_text
from pgsweep.load.document import LoadDocument
from pgsweep.load.input.header import EMPTY, Fields, chosen_fields, strays
from pgsweep.load.input.names import check_columns
from pgsweep.load.input.rows import json_columns, parquet_columns
from pgsweep.load.input.source import Input
from pgsweep.load.input.split import read_first
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
from pgsweep.load.partition import NewPartition
from pgsweep.load.table import check_table
from pgsweep.load.unlogged import GIVEN_UP, check_unlogged
from pgsweep.load.way import Way, decide_way, fires
from pgsweep.pg.load.catalog import Catalog, IndexFacts, KeyFacts
from pgsweep.pg.load.code import Code
from pgsweep.pg.load.copy import CopyTarget
from pgsweep.pg.load.journal import UNLOGGED, JournalObject
from pgsweep.pg.load.work import unlogged_change
from pgsweep.pg.session.connect import Connection
from pgsweep.plain import quoted_where_needed
from pgsweep.records.load import (
    LoadChoice,
    LoadEstimate,
    LoadFile,
    LoadFunction,
    LoadObject,
    LoadPlan,
    LoadResult,
)
from pgsweep.records.rollup import total

_HEAP_PER_FILE_BYTE: Final = 1.2


@dataclass(frozen=True)
class Agreed:
    """A load as it was planned and shown: what is carried out is this, or nothing.

    Attributes:
        table: as the user has named it.
        catalog: of the table; of a new partition, as it will be.
        objects: what is dropped or disabled, in the order in which it is made again.
        result: what is shown.
    """

    table: str
    catalog: Catalog
    code: Code
    document: LoadDocument
    objects: list[JournalObject]
    partition: NewPartition | None
    result: LoadResult


def prepare(
    catalog: Catalog, inputs: Sequence[Input], options: LoadOptions, connection: Connection, code: Code
) -> tuple[LoadDocument, list[JournalObject]]:
    """Return the plan, and what is dropped or disabled, in the order in which it is made again.

    Raises:
        MissingAbility, UsageError, InputError: it cannot be loaded like this.
    """
    check_table(catalog, connection)
    looked = _look(catalog, inputs, options)
    records = total([amount.records for amount in looked.amounts])
    if options.unlogged:
        check_unlogged(catalog, options, firing=fires(catalog, options))
    fates = _Fates.of(catalog, options, records)
    way = decide_way(catalog, inputs, options, connection, stray=looked.stray, dropping=fates.dropping)
    options, table, kind = way.options, catalog.table, inputs[0].format
    choices = [*_header_choices(inputs, looked.fields), *way.choices]
    if code.functions:
        choices.append(LoadChoice(what="search_path of functions", choice=code.path, reason=code.reason))
    objects = _objects(catalog, options, fates)
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
        columns=looked.columns,
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
        objects=_shown(catalog, fates, options),
        referenced_by=catalog.referencing,
        strategy="one transaction" if way.single else "pieces",
        one_statement=way.one_statement,
        jobs=way.jobs,
        freeze=way.freeze,
        maintenance_work_mem_bytes=way.memory_bytes,
        piece_bytes=way.piece_bytes,
        choices=choices,
        given_up=_given_up(objects, single=way.single),
        estimate=_estimate(catalog, looked, fates, way),
        notes=_notes(catalog, options, code, looked),
        functions=[
            LoadFunction(name=f.name, owner=f.owner, used_by=f.used_by, path=f.own_path or code.path)
            for f in code.functions
        ],
    )
    document = LoadDocument(
        table=table,
        columns=catalog.columns,
        plan=plan,
        target=_target(catalog, looked.columns, kind, options, way.freeze),
        inputs=list(inputs),
        options=options,
        truncatable=catalog.truncatable,
        path=code.path,
        measure=way.measure,
    )
    return document, objects


@dataclass(frozen=True)
class _Fates:
    """What becomes of indexes and foreign keys: the reason to keep each, or None to make it again."""

    indexes: Sequence[tuple[IndexFacts, str | None]]
    keys: Sequence[tuple[KeyFacts, str | None]]

    @classmethod
    def of(cls, catalog: Catalog, options: LoadOptions, records: int | None) -> _Fates:
        """Decide by what is estimated to be faster, unless the options say it."""
        indexes = which_indexes(catalog, options, records)
        dropped = {index.name for index, reason in indexes if reason is None}
        return cls(indexes, which_keys(catalog, options, records, dropped))

    @property
    def dropping(self) -> bool:
        """Whether any of them is dropped."""
        return any(reason is None for _, reason in (*self.indexes, *self.keys))


def _objects(catalog: Catalog, options: LoadOptions, fates: _Fates) -> list[JournalObject]:
    """Return what is dropped, disabled or changed, in the order in which it is made again.

    Raises:
        MissingAbility, UsageError: triggers may not be disabled.
    """
    objects = [*journal_indexes(fates.indexes), *journal_keys(fates.keys)]
    if options.disable_triggers:
        objects += _disabled_triggers(catalog)
    if options.unlogged:
        objects.append(unlogged_change(catalog.table))
    return sorted(objects, key=lambda entry: (entry.stage, -(entry.size_bytes or 0)))


@dataclass(frozen=True)
class _Looked:
    """What was seen in the files: columns, fields of text, how many records, and stray quotes."""

    columns: list[str]
    fields: list[Fields | None]
    amounts: list[Amount]
    stray: str | None


def _notes(catalog: Catalog, options: LoadOptions, code: Code, looked: _Looked) -> list[str]:
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
    if fires(catalog, options) and not options.single_transaction:
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
        raise LacksPrivilege(
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


def _shown(catalog: Catalog, fates: _Fates, options: LoadOptions) -> list[LoadObject]:
    shown = [
        LoadObject(
            kind=KINDS[index.constraint_type],
            name=index.name,
            definition=index.definition,
            action="keep" if reason else "drop and make again",
            reason=reason or _build_reason(catalog, index),
            size_bytes=index.bytes,
        )
        for index, reason in fates.indexes
    ]
    shown += [
        LoadObject(
            kind="foreign key",
            name=key.name,
            definition=key.add.removesuffix(" NOT VALID"),
            action="keep" if reason else "drop, add and validate",
            reason=reason or "one join validates all rows; otherwise each key is looked up",
        )
        for key, reason in fates.keys
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


def _estimate(catalog: Catalog, looked: _Looked, fates: _Fates, way: Way) -> LoadEstimate:
    records = total([amount.records for amount in looked.amounts])
    size = total([amount.read_bytes for amount in looked.amounts])
    if records is None or size is None:
        return LoadEstimate(records=None, bytes=size, seconds=None, wal_bytes=None, certainty="assumed")
    rows = records + (catalog.table.rows_estimate or 0)
    seconds = size / COPY_BYTES_PER_SECOND
    if way.options.unlogged:
        seconds += size / REWRITE_BYTES_PER_SECOND
    wal = size * _HEAP_PER_FILE_BYTE
    for _, reason in fates.indexes:
        seconds += rows * INDEX_BUILD_SECONDS if reason is None else records * INDEX_INSERT_SECONDS
        wal += rows * INDEX_BYTES_PER_ROW if reason is None else records * 4 * INDEX_BYTES_PER_ROW
    for key, reason in fates.keys:
        seconds += rows * KEY_VALIDATE_SECONDS if reason is None else records * check_seconds(key)
    minimal = way.freeze and catalog.table.wal_level == "minimal"
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
