"""Random records for a table of `model_tables`, and which of them a right load takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from tests.load.model_tables import KINDS, LONG, MOST, REGIONS, Column, Row, Table, make_text

BAD_BYTE = "\ue000"
"""Stands in a text for a byte that is nothing in the encoding of the file."""


@dataclass
class Record:
    """A record of a file.

    Attributes:
        row: what the table has of it if it is taken.
        wrong: texts that stand in the file instead, by column.
        fault: why it is bad by itself, or empty.
        file: its number.
        line: where it begins in its file; of Parquet the number of the row.
        data: its bytes without the end of the line.
    """

    row: Row
    wrong: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    file: int = 0
    line: int = 0
    data: bytes = b""


def make_value(rng: Random, column: Column, number: int, alphabet: str) -> str | None:
    """Return a value for the row `number` that no rule of the table forbids."""
    match column.use:
        case "key":
            return str(number)
        case "code":
            if not column.not_null and rng.random() < 0.2:
                return None
            return rng.choice(["Code ", 'x"']) + str(number)
        case "span":
            return None if rng.random() < 0.2 else f"[{number * 10},{number * 10 + rng.randrange(1, 9)})"
        case "region":
            return rng.choice(REGIONS)
        case "parent":
            return str(rng.randrange(10)) if rng.random() < 0.9 else None
        case "up":
            return None
    if not column.not_null and rng.random() < 0.15:
        return None
    return make_text(rng, alphabet) if column.kind == "text" else KINDS[column.kind].make(rng)


def make_rows(
    rng: Random, table: Table, count: int, columns: list[Column], numbers: list[int], alphabet: str
) -> list[Row]:
    """Return rows of these columns; `numbers` gives keys, and loses those that are used."""
    rows = []
    for _ in range(count):
        number = numbers.pop()
        row = {column.name: make_value(rng, column, number, alphabet) for column in columns}
        code = table.of("code")
        if code is not None and table.same_nulls and code.name in row:
            row[code.name] = f"Code {number}"
        rows.append(row)
    return rows


def refer(rng: Random, table: Table, rows: list[Row], keys: list[str | None]) -> None:
    """Have some rows refer to rows of the same table with one of these keys."""
    up = table.of("up")
    if up is not None and keys:
        for row in rows:
            if up.name in row and rng.random() < 0.6:
                row[up.name] = rng.choice(keys)


def possible_faults(
    table: Table, columns: list[Column], before: list[Row], kind: str, *, header: bool
) -> list[str]:
    """Return what can be wrong with a record of these columns in a file of this format."""
    uses = {column.use for column in columns}
    faults = ["check", "twice", "twice"]
    if before:
        faults += ["exists", "exists"]
    if any(column.not_null for column in columns):
        faults += ["null"]
    faults += [use for use in ("parent", "up") if use in uses]
    if table.partitioned == "list":
        faults.append("region")
    if table.partitioned == "range" and (table.leaf or not table.rest):
        faults.append("range")
    if table.raises:
        faults += ["raise", "raise"]
    if table.code and table.code != "partial" and "code" in uses:
        faults.append("long")
    if kind == "binary":
        return [fault for fault in faults if fault not in ("null",)]
    faults += ["type"] * 4
    texts = any(column.kind == "text" for column in columns)
    match kind:
        case "csv":
            faults += ["few", "many", "blank", "open"]
            # How lines end is learned from the first one.
            faults += ["stray"] if header else []
        case "tsv":
            faults += ["few", "many", "blank"]
        case "jsonl":
            faults += ["broken", "broken"]
    if texts and kind != "parquet":
        faults.append("bytes")
    return faults


def spoil(
    rng: Random,
    table: Table,
    record: Record,
    others: list[Row],
    before: list[Row],
    fault: str,
    any_text: Collection[str] = (),
) -> bool:
    """Make a record bad, if that can be done with it.

    Args:
        others: the rows of all records.
        any_text: the types that take any text in this format.
    """
    row = record.row
    wanted = {"region": ("region",), "parent": ("parent",), "up": ("up",), "long": ("code",)}.get(fault, ())
    column = next((each for each in table.columns if each.use in wanted and each.name in row), None)
    match fault:
        case "exists" | "twice":
            source = rng.choice(before if fault == "exists" else others)
            if source is row:
                return False
            taken = [
                each for each in table.columns if each.use in ("key", "code", "span") and each.name in row
            ]
            if not taken:
                return False
            for each in rng.sample(taken, rng.randrange(1, len(taken) + 1)):
                if each.name in source and (source[each.name] is not None or not each.not_null):
                    row[each.name] = source[each.name]
            region = table.of("region")
            if region is not None and region.name in row:
                row[region.name] = source[region.name]
            return True
        case "check" | "range" | "raise":
            numbers = {"check": 13, "raise": 14, "range": MOST + rng.randrange(100)}
            row[table.id] = str(numbers[fault])
            return True
        case "null":
            chosen = rng.choice([each for each in table.columns if each.not_null and each.name in row])
            row[chosen.name] = None
        case "type":
            those = [
                each
                for each in table.columns
                if each.name in row
                and each.kind in KINDS
                and KINDS[each.kind].wrong
                and not each.use
                and each.kind not in any_text
            ]
            if not those:
                return False
            chosen = rng.choice(those)
            record.wrong[chosen.name] = rng.choice(KINDS[chosen.kind].wrong)
        case "bytes":
            texts = [each for each in table.columns if each.name in row and each.kind == "text"]
            if not texts:
                return False
            chosen = rng.choice(texts)
            text = row[chosen.name] or ""
            at = rng.randrange(len(text) + 1)
            record.wrong[chosen.name] = text[:at] + BAD_BYTE + text[at:]
        case "region" | "parent" | "up" | "long":
            if column is None:
                return False
            fixed = {"region": "xx", "parent": "777", "up": "987654"}
            row[column.name] = fixed.get(fault) or "".join(
                rng.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(LONG)
            )
            if fault in ("parent", "up"):
                return True
    record.fault = fault
    return True


@dataclass(frozen=True)
class Verdict:
    """Which records a load may take, by their numbers.

    Attributes:
        must: it has to take these.
        may: it takes none but these; where the two differ, records exclude each other, and one is as good as
            another.
        shared: keys that several records have.
    """

    must: frozenset[int]
    may: frozenset[int]
    shared: frozenset[tuple[str, ...]]


def judge(table: Table, before: list[Row], records: list[Record], full: list[Row], *, fired: bool) -> Verdict:
    """Return which records a right load takes.

    Args:
        full: the records as rows with all columns.
        fired: triggers on INSERT do.
    """
    taken = {key for row in before for key in table.keys_of(row)}
    parent = table.of("parent")
    may = {
        number
        for number, (record, row) in enumerate(zip(records, full, strict=True))
        if not record.fault
        and not table.forbids(row, fired=fired)
        and not taken & set(table.keys_of(row))
        and (parent is None or row[parent.name] is None or int(row[parent.name] or 0) < 10)
    }
    # A record may be in the way of another one, although at the end it is not taken itself.
    keys = Counter(key for number in may for key in table.keys_of(full[number]))
    may = _with_references(table, before, full, may)
    must = {number for number in may if all(keys[key] == 1 for key in table.keys_of(full[number]))}
    if "INITIALLY DEFERRED" in table.up:
        must = _with_references(table, before, full, must)
    else:  # each file is a statement
        taken_before: set[int] = set()
        for file in sorted({record.file for record in records}):
            here = {number for number in must if records[number].file == file}
            taken_before = _with_references(table, before, full, here | taken_before)
        must = taken_before
    return Verdict(frozenset(must), frozenset(may), frozenset(key for key in keys if keys[key] > 1))


def _with_references(table: Table, before: list[Row], full: list[Row], numbers: set[int]) -> set[int]:
    """Return those of the records whose references to the same table are satisfied by the others."""
    up = table.of("up")
    if up is None:
        return numbers
    while True:
        there = {row[table.id] for row in before} | {full[number][table.id] for number in numbers}
        left = {n for n in numbers if full[n][up.name] is None or full[n][up.name] in there}
        if left == numbers:
            return numbers
        numbers = left


def refused_rightly(
    table: Table, verdict: Verdict, records: list[Record], full: list[Row], number: int, final: list[Row]
) -> bool:
    """Return whether something could be in the way of a record that may be taken.

    Args:
        final: the rows that are in the table.
    """
    row, up = full[number], table.of("up")
    if verdict.shared & set(table.keys_of(row)):
        return True
    if up is None or row[up.name] is None:
        return False
    later = {full[n][table.id] for n, record in enumerate(records) if record.file > records[number].file}
    return row[up.name] in later or row[up.name] not in {row[table.id] for row in final}


def complete(table: Table, row: Row, *, fired: bool) -> Row:
    """Return the row that the table has for what a record gives: with defaults and computed columns.

    Args:
        fired: triggers did.
    """
    full = {column.name: row.get(column.name, column.default) for column in table.columns}
    number = full[table.id]
    for name, how in table.computed.items():
        if number is None:
            full[name] = None
        elif how == "trigger":
            full[name] = f"T{number}" if fired else None
        else:
            full[name] = str(int(number) * 2)
    return full
