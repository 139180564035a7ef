"""Which practices of loading pay for this table, this file and this server: each alone, then together.

Every practice fills a copy of the table from the same sample, within a transaction that is undone. Practices
are interleaved in rounds, so that what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from pgsweep.errors import UsageError
from pgsweep.load.agreed import prepare
from pgsweep.load.copying import chunks_of
from pgsweep.load.document import LoadDocument
from pgsweep.load.input.fields import values_of
from pgsweep.load.input.source import Input, find_inputs
from pgsweep.load.input.split import records_of
from pgsweep.load.objects import journal_indexes, journal_keys, which_indexes, which_keys
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load.catalog import Catalog, read_catalog
from pgsweep.pg.load.code import read_code, under_path
from pgsweep.pg.load.compare import insert_rows, run_statements, table_copy
from pgsweep.pg.load.copy import BadRow, CopyTarget, copy_with_path, open_session, settle
from pgsweep.pg.load.work import analyze, drop_objects, failure_of, unlogged_change
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.failures import DriverError
from pgsweep.pg.session.userpath import resolve_relation
from pgsweep.progress import Progress
from pgsweep.records.load import LoadCompareResult, LoadPractice

_SAMPLE_BYTES: Final = 16 << 20
_SINGLE_ROWS: Final = 3000
_BATCH_ROWS: Final = 30_000
_BATCH: Final = 1000
_PARAMETERS: Final = 65_535
"""The most parameters of one statement: the protocol counts them in 16 bits."""

_ROUNDS: Final = 3
COPY: Final = "COPY"
TOGETHER: Final = "COPY, all of these together"


@dataclass(frozen=True)
class _Ways:
    """What one practice does differently from COPY into the table as it stands."""

    name: str
    drop_indexes: bool = False
    drop_keys: bool = False
    no_triggers: bool = False
    freeze: bool = False
    unlogged: bool = False
    analyze: bool = False


@dataclass(frozen=True)
class _Sample:
    parts: list[bytes | memoryview]
    records: int
    size_bytes: int
    rows: list[list[str | None]]


def compare_practices(
    conninfo: str,
    files: Sequence[str],
    table: str,
    options: LoadOptions,
    *,
    progress: Progress,
    stop: threading.Event | None = None,
) -> LoadCompareResult:
    """Return the time that each practice takes for a sample of the file.

    Raises:
        PgsweepError: the file or the table cannot be loaded.
    """
    inputs = find_inputs(files, options)
    if inputs[0].format == "binary":
        raise UsageError("COPY's binary format cannot be compared", hint="compare with the same rows as CSV")
    with open_session(conninfo) as connection:
        try:
            return _compare(connection, table, inputs, options, progress, stop or threading.Event())
        except DriverError as error:
            raise failure_of(error) from error
        except BadRow as bad:
            raise UsageError(
                f"the sample cannot be loaded: {bad.reason}", hint="see the plan: --plan"
            ) from bad


def _compare(
    connection: Connection,
    table: str,
    inputs: list[Input],
    options: LoadOptions,
    progress: Progress,
    stop: threading.Event,
) -> LoadCompareResult:
    original = read_catalog(connection, resolve_relation(connection, table))
    assert original is not None
    code = read_code(connection, original.table, options.search_path)
    document, _ = prepare(original, inputs, options, connection, code)
    sample = _sample_of(document)
    ways, left_out = _ways(original)
    left_out.append("several sessions: measured when a load begins")
    if original.table.wal_level == "minimal":
        left_out.append(
            "wal_level=minimal: a table made in the same transaction is not logged, so UNLOGGED gains nothing"
        )
    times: dict[str, list[float]] = {}
    rows: dict[str, int] = {}
    done = 0
    progress.stage("comparing practices")
    for _ in range(_ROUNDS):
        for name, count, measure in _practices(connection, original, document, sample, ways):
            if stop.is_set():
                break
            times.setdefault(name, []).append(measure())
            rows[name] = count
            done += 1
        if stop.is_set():
            break
    speeds = {name: rows[name] / statistics.median(seconds) for name, seconds in times.items()}
    base = speeds.get(COPY)
    return LoadCompareResult(
        server_version=connection.info.parameter_status("server_version") or "",
        database=connection.info.dbname,
        table=original.table.quoted,
        sample_rows=sample.records,
        sample_bytes=sample.size_bytes,
        rounds=_ROUNDS,
        practices=[
            LoadPractice(
                practice=name,
                rows=rows[name],
                seconds=[round(value, 4) for value in seconds],
                rows_per_second=round(speeds[name], 1),
                ratio_to_copy=round(speeds[name] / base, 3) if base else 0.0,
                remark=_REMARKS.get(name, ""),
            )
            for name, seconds in times.items()
        ],
        left_out=left_out,
    )


_REMARKS: Final = {
    "INSERT, one row a statement": "in one transaction; a commit for each row costs more",
    "COPY into UNLOGGED, then LOGGED": "a crash meanwhile empties the table",
}


def _ways(catalog: Catalog) -> tuple[list[_Ways], list[str]]:
    keys = any(not key.to_itself for key in catalog.keys)
    firing = any(trigger.fires for trigger in catalog.triggers)
    possible = [
        (True, _Ways(COPY), ""),
        (
            bool(catalog.indexes),
            _Ways("COPY, indexes dropped and made again", drop_indexes=True),
            "indexes dropped: there are none",
        ),
        (
            keys,
            _Ways("COPY, foreign keys dropped and validated", drop_keys=True),
            "foreign keys dropped: there are none to other tables",
        ),
        (
            firing,
            _Ways("COPY, triggers disabled", no_triggers=True),
            "triggers disabled: there are none on INSERT",
        ),
        (True, _Ways("COPY into UNLOGGED, then LOGGED", unlogged=True, drop_keys=keys), ""),
        (True, _Ways("COPY FREEZE", freeze=True), ""),
        (True, _Ways("COPY, and ANALYZE", analyze=True), ""),
        (
            True,
            _Ways(TOGETHER, drop_indexes=True, drop_keys=True, no_triggers=True, freeze=True, analyze=True),
            "",
        ),
    ]
    return [way for can, way, _ in possible if can], [why for can, _, why in possible if not can]


Practice = tuple[str, int, Callable[[], float]]


def _practices(
    connection: Connection, original: Catalog, document: LoadDocument, sample: _Sample, ways: Sequence[_Ways]
) -> list[Practice]:
    target, path = document.target, document.path
    at_once = max(1, min(_BATCH, _PARAMETERS // max(1, len(target.columns))))

    def inserted(rows: Sequence[Sequence[str | None]], size: int) -> float:
        with table_copy(connection, original) as catalog:
            begin, here = time.monotonic(), _of(target, catalog)
            with under_path(connection, path):
                insert_rows(connection, here, rows, at_once=size)
            settle(connection, here, path)
            return time.monotonic() - begin

    single, batch = sample.rows[:_SINGLE_ROWS], sample.rows
    return [
        ("INSERT, one row a statement", len(single), partial(inserted, single, 1)),
        (f"INSERT, {at_once} rows a statement", len(batch), partial(inserted, batch, at_once)),
        *(
            (way.name, sample.records, partial(_copied, connection, original, document, sample, way))
            for way in ways
        ),
    ]


def _copied(
    connection: Connection, original: Catalog, document: LoadDocument, sample: _Sample, way: _Ways
) -> float:
    with table_copy(connection, original, unlogged=way.unlogged) as catalog:
        options, path = LoadOptions(indexes="drop"), document.path
        indexes = journal_indexes(which_indexes(catalog, options, sample.records)) if way.drop_indexes else []
        keys = journal_keys(which_keys(catalog, options, sample.records, set())) if way.drop_keys else []
        objects = sorted([*indexes, *keys], key=lambda entry: entry.stage)
        begin = time.monotonic()
        drop_objects(connection, objects)
        if way.no_triggers:
            run_statements(connection, [trigger.disable for trigger in catalog.triggers])
        wanted = msgspec.structs.replace(_of(document.target, catalog), freeze=way.freeze)
        copy_with_path(connection, wanted, sample.parts, path)
        settle(connection, wanted, path)
        if way.unlogged:
            run_statements(connection, unlogged_change(catalog.table).make)
        for entry in objects:
            run_statements(connection, entry.make)
        if way.no_triggers:
            run_statements(connection, [trigger.enable for trigger in catalog.triggers])
        if way.analyze:
            analyze(connection, catalog.table, path, vacuum=False)
        return time.monotonic() - begin


def _of(target: CopyTarget, catalog: Catalog) -> CopyTarget:
    return msgspec.structs.replace(
        target, schema=catalog.table.schema, table=catalog.table.name, freeze=False
    )


def _sample_of(document: LoadDocument) -> _Sample:
    parts: list[bytes | memoryview] = []
    rows: list[list[str | None]] = []
    records = size = 0
    small = msgspec.structs.replace(
        document, plan=msgspec.structs.replace(document.plan, piece_bytes=_SAMPLE_BYTES // 8)
    )
    entry = document.inputs[0]
    for chunk in chunks_of(entry, small):
        if len(rows) < _BATCH_ROWS:
            found = records_of(entry, document.options, chunk)
            wanted = min(_BATCH_ROWS - len(rows), len(found))
            rows += [values_of(found[number], document.target) for number in range(wanted)]
        parts += chunk.parts
        records += chunk.records or 0
        size += chunk.source_bytes
        if size >= _SAMPLE_BYTES:
            break
    return _Sample(parts, records, size, rows)
