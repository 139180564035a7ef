"""Cases for the model of load: a table, files, options and perhaps a fault, all from one seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.load.model_ddl import statements_of
from tests.load.model_files import SUFFIXES, Style, adapt, make_style, options_of, write_file
from tests.load.model_oracle import (
    Record,
    Verdict,
    complete,
    judge,
    make_rows,
    possible_faults,
    refer,
    spoil,
)
from tests.load.model_tables import ALPHABETS, LEAF, Column, Row, Table, make_table, quote

OWNER, WRITER = "load_model_owner", "load_model_writer"
"""Roles that are no superusers: one owns some of the tables, the other may insert, but not always read."""
FAULT_SHARE = 0.25
INSERTING = {"row", "statement", "before", "raise"}
"""Triggers on INSERT."""
ENVIRONMENTS = (
    {"PGCLIENTENCODING": "LATIN1"},
    {"PGOPTIONS": "-c default_transaction_isolation=serializable"},
    {"PGOPTIONS": "-c default_transaction_read_only=on"},
    {"PGOPTIONS": "-c DateStyle=SQL,DMY -c IntervalStyle=iso_8601 -c bytea_output=escape"},
    {"PGOPTIONS": "-c statement_timeout=1s -c lock_timeout=20ms"},
    {"PGOPTIONS": "-c idle_in_transaction_session_timeout=20ms"},
    {"PGOPTIONS": "-c constraint_exclusion=off -c row_security=off -c work_mem=64kB"},
)
"""What a user may have set for his sessions."""


@dataclass
class Fault:
    """What happens to the load.

    Attributes:
        victim: `kill` and `interrupt` of the command, `session` and `sessions` of the server that are
            terminated, or the `server`, which is stopped at once.
        journal: it happens after there is a journal; else after the beginning.
        delay_seconds: after that.
    """

    victim: str
    journal: bool
    delay_seconds: float


@dataclass
class Case:
    """One load.

    Attributes:
        before: the rows of the table, with all columns.
        child: what rows of another table refer to.
        records: of all files, in their order.
        full: what the table has of them.
        fired: triggers on INSERT do.
        then: what is run after it was cut short.
        rejects: there is a file for them.
        user: as whom.
        env: variables of the command.
        neighbours: rows that another session inserts meanwhile.
        limit: the role may have one session only.
        plan: it is asked for first.
        keep: what cannot be finished is kept as it is.
    """

    seed: int
    table: Table
    style: Style
    before: list[Row]
    child: list[str | None]
    columns: list[Column]
    records: list[Record]
    files: list[Path]
    options: list[str]
    fired: bool
    rejects: bool
    max_rejects: int
    then: list[str]
    faults: list[Fault | None]
    user: str = "postgres"
    env: dict[str, str] = field(default_factory=dict)
    neighbours: list[Row] = field(default_factory=list)
    limit: bool = False
    plan: bool = False
    keep: bool = False
    full: list[Row] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        return judge(self.table, self.before, self.records, self.full, fired=self.fired)

    @property
    def setup(self) -> list[str]:
        """Return the statements that make everything."""
        made = statements_of(self.table, self.before, self.child)
        if self.user == WRITER:
            schema = self.table.schema
            names = ", ".join(quote(column.name) for column in self.columns)
            made += [
                f"GRANT USAGE ON SCHEMA {schema} TO {WRITER}",
                f"GRANT INSERT ({names}) ON {self.table.target} TO {WRITER}",
                f"GRANT INSERT ON {schema}.audit, {schema}.statements TO {WRITER}",
                f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {WRITER}",
            ]
            if self.seed % 2:
                made.append(f"GRANT SELECT ON {self.table.target} TO {WRITER}")
        return made


def make_case(
    seed: int, version: int, folder: Path, binary: Callable[[Table, list[Column], list[Record]], bytes]
) -> Case:
    """Make a case, and write its files into the folder."""
    rng = Random(seed)
    kind = rng.choices(["csv", "tsv", "jsonl", "parquet", "binary"], [46, 18, 18, 11, 7])[0]
    encoding = "UTF8"
    if kind in ("csv", "tsv") and rng.random() < 0.3:
        encoding = rng.choice(list(ALPHABETS))
    alphabet = ALPHABETS[encoding]
    table = make_table(rng, f"case_{seed}", version, encoding)
    style = make_style(rng, kind, encoding)
    columns = _file_columns(rng, table)
    count = rng.choices([rng.randrange(0, 4), rng.randrange(3, 40), rng.randrange(40, 900)], [6, 74, 20])[0]
    faults: list[Fault | None] = []
    if rng.random() < FAULT_SHARE:
        faults = [_fault(rng) for _ in range(2 if rng.random() < 0.2 else 1)]
        count = max(count, rng.randrange(40, 1500))
    numbers = [number for number in range(1, 4 * count + 300) if number not in (13, 14)]
    rng.shuffle(numbers)
    before = make_rows(rng, table, rng.choice([0, 0, 1, 5, 30]), table.columns, numbers, alphabet)
    if table.leaf:
        numbers = [number for number in numbers if LEAF[0] <= number < LEAF[1]]
        count = min(count, len(numbers) - 10)
    keys = [row[table.id] for row in before]
    refer(rng, table, before, keys)
    rows = make_rows(rng, table, count, columns, numbers, alphabet)
    refer(rng, table, rows, [*keys, *(row[table.id] for row in rows)])
    records = [Record(row) for row in rows]
    for record in records:
        adapt(style, record, columns)
    bad = _spoil_some(rng, table, style, columns, records, before)
    for record in records:
        adapt(style, record, columns)
    options = options_of(style, columns, all_columns=_all_columns(table, columns), rng=rng)
    case = Case(
        seed,
        table,
        style,
        before=[complete(table, row, fired=False) for row in before],
        child=[],
        columns=columns,
        records=records,
        files=[],
        options=options,
        fired=True,
        rejects=kind != "binary" and rng.random() < (0.9 if bad else 0.4),
        max_rejects=1000,
        then=["--resume" if rng.random() < 0.75 else "--rollback" for _ in range(2)] + ["--rollback"],
        faults=faults,
    )
    _choose_options(rng, case)
    _choose_sessions(rng, case, numbers, alphabet)
    _write(rng, case, folder, binary)
    case.full = [complete(table, record.row, fired=case.fired) for record in records]
    if table.child:
        case.child = [None, *rng.sample(keys, min(len(keys), 4))]
        if table.dangling:
            there = [row[table.id] for row in rows if row[table.id] is not None]
            case.child += rng.sample(there, min(len(there), 4))
    return case


def _file_columns(rng: Random, table: Table) -> list[Column]:
    """Return the columns that the files have: the key, at least one other, and most of the rest."""
    left_out = rng.random() < 0.25
    columns = [
        column
        for column in table.columns
        if column.use in ("key", "region")
        or not (left_out and rng.random() < 0.4 and (column.default is not None or not column.not_null))
    ]
    return columns if len(columns) > 1 else table.columns


def _all_columns(table: Table, columns: list[Column]) -> bool:
    generated = [how for how in table.computed.values() if how == "trigger"]
    return len(columns) == len(table.columns) and not generated and not table.any_value


def _fault(rng: Random) -> Fault:
    victim = rng.choices(["kill", "interrupt", "session", "sessions", "server"], [40, 20, 15, 10, 15])[0]
    journal = rng.random() < 0.6
    return Fault(victim, journal, rng.uniform(0, 0.12) if journal else rng.uniform(0, 0.4))


def _spoil_some(
    rng: Random,
    table: Table,
    style: Style,
    columns: list[Column],
    records: list[Record],
    before: list[Row],
) -> bool:
    """Make some records bad; return whether there are such."""
    # Of COPY's binary format no records are refused one by one, but all.
    if rng.random() < (0.7 if style.kind == "binary" else 0.3) or not records:
        return False
    possible = possible_faults(table, columns, before, style.kind, header=style.header != "none")
    how_many = rng.choice([1, 1, 2, 3, max(1, len(records) // 10), max(1, len(records) // 3)])
    rows = [record.row for record in records]
    for number in rng.sample(range(len(records)), min(how_many, len(records))):
        fault = rng.choice(possible)
        if fault == "open":  # the whole file is refused for it
            fault, number = ("open", len(records) - 1) if rng.random() < 0.1 else ("few", number)
        if records[number].fault or records[number].wrong:
            continue
        any_text = ("jsonb",) if style.kind == "jsonl" else ()
        spoil(rng, table, records[number], rows, before, fault, any_text)
        if fault in ("few", "many", "blank", "stray", "open", "broken"):
            records[number].fault = fault
    return True


def _choose_options(rng: Random, case: Case) -> None:
    options, table = case.options, case.table
    options += ["--indexes", rng.choices(["auto", "keep", "drop"], [40, 25, 35])[0]]
    one = rng.random() < 0.2
    if one:
        options.append("--single-transaction")
        if not case.before and not case.rejects and not (table.child or table.up) and rng.random() < 0.2:
            options.append("--freeze")
    else:
        if rng.random() < 0.5:
            # Where triggers fire, there is one session.
            options += [
                "--jobs",
                str(1 if table.triggers & INSERTING else rng.randrange(1, 4)),
            ]
        if rng.random() < 0.55 or case.faults:
            options += ["--piece", rng.choice(["1kB", "2kB", "4kB", "16kB"])]
        if not (case.before or table.partitioned or table.child or table.triggers) and rng.random() < 0.2:
            options.append("--unlogged")
    if rng.random() < 0.07:
        options.append("--no-freeze")
    if rng.random() < 0.07:
        options.append("--vacuum")
    if table.triggers & INSERTING and not table.partitioned and rng.random() < 0.2:
        options.append("--disable-triggers")
        case.fired = False
    if rng.random() < 0.15:
        options += ["--on-failure", "keep"]
    if rng.random() < 0.05:
        options += ["--journal", "local journal.json"]
    if case.rejects:
        case.max_rejects = rng.choice([1000] * 18 + [0, 2])
        if case.max_rejects != 1000:
            options += ["--max-rejects", str(case.max_rejects)]


def _choose_sessions(rng: Random, case: Case, numbers: list[int], alphabet: str) -> None:
    """Choose who loads, with which settings, and who else is at work."""
    table = case.table
    if table.owner and rng.random() < 0.6:
        case.user = OWNER
    elif rng.random() < 0.06:
        case.user = WRITER
    if table.bare:
        case.env = {"PGOPTIONS": f"-c search_path={table.schema}"}
    elif rng.random() < 0.12:
        case.env = dict(rng.choice(ENVIRONMENTS))
    case.limit = case.user == OWNER and rng.random() < 0.1
    case.plan, case.keep = rng.random() < 0.05, rng.random() < 0.3
    quiet = all(fault is not None and fault.victim in ("kill", "interrupt") for fault in case.faults)
    if quiet and case.fired and "--unlogged" not in case.options and rng.random() < 0.15:
        rows = make_rows(rng, table, rng.randrange(1, 4), table.columns, numbers, alphabet)
        case.neighbours = [complete(table, row, fired=True) for row in rows]


def _write(
    rng: Random, case: Case, folder: Path, binary: Callable[[Table, list[Column], list[Record]], bytes]
) -> None:
    """Write one to three files of the records in their order."""
    style = case.style
    several = not style.stdin and rng.random() < 0.2
    if any(record.fault == "open" for record in case.records):
        several = False
    cuts = sorted(rng.randrange(len(case.records) + 1) for _ in range(rng.randrange(1, 3) if several else 0))
    bounds = [0, *cuts, len(case.records)]
    suffix = SUFFIXES[style.kind] + (f".{style.compression}" if style.compression else "")
    if style.compression and rng.random() < 0.1:  # it is known by its first bytes, too
        suffix = SUFFIXES[style.kind]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        records = case.records[begin:end]
        if several and not records and style.kind != "parquet" and style.header == "none":
            continue
        for record in records:
            record.file = len(case.files)
        path = folder / f"rows {number}.{suffix}"
        write_file(
            rng, style, case.columns, records, path, lambda columns, some: binary(case.table, columns, some)
        )
        case.files.append(path)
    if not case.files:
        path = folder / f"rows.{suffix}"
        write_file(
            rng, style, case.columns, [], path, lambda columns, some: binary(case.table, columns, some)
        )
        case.files.append(path)
