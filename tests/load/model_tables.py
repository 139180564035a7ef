"""Random tables for loads, with what PostgreSQL makes of a record said in plain Python.

A value is the text that the server shows for it (`value::text`), None for NULL. A table knows which records
exclude each other and which need another one; `tests/load/model_oracle.py` reads that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

Row: TypeAlias = dict[str, str | None]

ALPHABETS = {
    "UTF8": "äß€ソ表𝔸",
    "LATIN1": "äßéø",
    "SJIS": "ソ表ポ能ー",
    "GBK": "乗乣亅偺",
    "BIG5": "功許蓋育",
    "EUC_JP": "日本ー",
}
"""By encoding; of SJIS, GBK and BIG5 with characters whose second byte is a backslash, a bar or a letter."""
CODECS = {
    "UTF8": "utf-8",
    "LATIN1": "latin-1",
    "SJIS": "shift_jis",
    "GBK": "gbk",
    "BIG5": "big5",
    "EUC_JP": "euc_jp",
}
_BITS = (
    *(
        "a",
        "bc",
        "x y",
        " ",
        "'",
        '"',
        '""',
        ",",
        ";",
        "|",
        "\t",
        "\\",
        "\\\\",
        "\\N",
        "\\.",
        "NULL",
        "%s",
        "{}",
    ),
    *("\n", "\r", "\r\n", "\n\n", "/", "$1", "--", "\x0b", "\x7f", "0"),
)


def quote(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | None) -> str:
    """Return a value as SQL has it."""
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def make_text(rng: Random, alphabet: str) -> str:
    """Return a text that is hard to write into a file."""
    if rng.random() < 0.02:
        return "".join(rng.choice(alphabet + "abc,\n") for _ in range(3000))
    if rng.random() < 0.5:
        return "".join(rng.choice("abcdefgh") for _ in range(rng.randrange(0, 8)))
    return "".join(rng.choice((*_BITS, *alphabet)) for _ in range(rng.randrange(0, 6)))


def _numeric(rng: Random) -> str:
    return f"{rng.randrange(-99999, 99999)}.{rng.randrange(100):02d}"


def _json(rng: Random) -> str:
    value = {
        "a": rng.randrange(99),
        "b": rng.choice([None, True, "x, y", "e\n", []]),
        "c": [1, {"d": "q\\"}],
    }
    return json.dumps(value, ensure_ascii=False)


def _array(rng: Random) -> str:
    return "{" + ",".join(rng.choice(["1", "-20", "NULL", "300"]) for _ in range(rng.randrange(4))) + "}"


def _moment(rng: Random) -> str:
    return f"20{rng.randrange(10, 40)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"


def _uuid(rng: Random) -> str:
    digits = f"{rng.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


@dataclass(frozen=True)
class Kind:
    """A type: as SQL has it, its values, and texts that it does not take."""

    sql: str
    make: Callable[[Random], str]
    wrong: tuple[str, ...] = ()


KINDS = {
    "int": Kind("int", lambda rng: str(rng.randrange(-9999, 9999)), ("x1", "99999999999", "1.5", "")),
    "bigint": Kind("bigint", lambda rng: str(rng.randrange(-(2**60), 2**60)), ("twelve", "9" * 30)),
    "numeric": Kind("numeric(10,2)", _numeric, ("1.2.3", "9999999999999")),
    "bool": Kind("bool", lambda rng: rng.choice(["true", "false"]), ("maybe",)),
    "date": Kind("date", _moment, ("2023-02-30", "yesterdax")),
    "timestamp": Kind("timestamp", lambda rng: f"{_moment(rng)} 0{rng.randrange(10)}:00:07", ("2023-13-01",)),
    "uuid": Kind("uuid", _uuid, ("12345",)),
    "short": Kind("varchar(5)", lambda rng: "abcde"[: rng.randrange(1, 6)], ("abcdefg",)),
    "mood": Kind("{schema}.mood", lambda rng: rng.choice(["sad", "so so"]), ("glad",)),
    "size": Kind("{schema}.size", lambda rng: str(rng.randrange(1, 99)), ("-5", "0")),
    "jsonb": Kind("jsonb", _json, ('{"a": ',)),
    "ints": Kind("int[]", _array, ("{1,x}", "{1")),
    "bytes": Kind("bytea", lambda rng: f"\\x{rng.getrandbits(32):08x}00", ("\\xzz",)),
    "text": Kind("text", lambda rng: ""),
}
"""`text` is made by `make_text`. A domain and an enum are in the schema of the case."""


@dataclass(frozen=True)
class Column:
    """A column that records give a value for.

    Attributes:
        default: what a record without the column has.
        use: `key`, `up` (refers to the key of the same table), `parent`, `code` (unique), `span` (excludes
            overlaps), `region` (chooses the partition), or empty.
    """

    name: str
    kind: str
    not_null: bool = False
    default: str | None = None
    use: str = ""
    clauses: str = ""


@dataclass
class Table:
    """A table, what is around it, and the rules that its rows follow.

    Attributes:
        key: `primary`, `deferred`, `unique` or empty: how the key's column is unique.
        code: how `code` is unique: `unique`, `deferred`, `lower`, `partial`, `index` (it is not), or empty.
        partitioned: `range`, `hash`, `list`, or empty.
        up: how the reference to itself is checked, or empty.
        triggers: of `row`, `statement`, `before`, `truncate`, `guard` (forbids DELETE and TRUNCATE), `raise`.
        raises: the SQLSTATE with which `raise` refuses the key 14.
        bare: the triggers' functions name tables without their schema.
        noted: what AFTER triggers write refers to the table.
        computed: columns that no record gives, by the function of the key that they are.
        any_value: columns that no record gives and that nobody can foretell.
        child: what happens to rows of another table that refer to this one, or empty.
        dangling: that table has rows that refer to keys that are not there yet.
        same_nulls: `code` takes one NULL only.
        rest: a table that is partitioned by ranges has a partition for all other keys.
        leaf: one of the partitions is loaded, not the whole.
        other_order: a partition has its columns in another order.
        heir: another table inherits from it, and has rows.
        rule: DELETE does nothing.
        view: a view depends on the primary key.
    """

    schema: str
    name: str
    version: int
    columns: list[Column] = field(default_factory=list)
    key: str = ""
    code: str = ""
    span: bool = False
    partitioned: str = ""
    up: str = ""
    parent: str = ""
    triggers: set[str] = field(default_factory=set)
    computed: dict[str, str] = field(default_factory=dict)
    any_value: dict[str, str] = field(default_factory=dict)
    child: str = ""
    dangling: bool = False
    raises: str = ""
    bare: bool = False
    noted: bool = False
    same_nulls: bool = False
    rest: bool = False
    leaf: bool = False
    other_order: bool = False
    heir: bool = False
    rule: bool = False
    view: bool = False
    indexes: list[str] = field(default_factory=list)
    extras: list[str] = field(default_factory=list)
    owner: str = ""

    def forbids(self, row: Row, *, fired: bool) -> bool:
        """Return whether the table takes no such row, whatever other rows there are.

        Args:
            fired: triggers on INSERT do.
        """
        number, code, region = row[self.id], self.of("code"), self.of("region")
        by_range = self.partitioned == "range"
        return (
            number == "13"
            or (number == "14" and fired and "raise" in self.triggers)
            or (by_range and not self.rest and (number is None or int(number) >= MOST))
            or (self.leaf and not LEAF[0] <= int(number or 0) < LEAF[1])
            or (region is not None and row[region.name] not in REGIONS)
            or any(row[column.name] is None for column in self.columns if column.not_null)
            # No index takes it.
            or (code is not None and len(row[code.name] or "") >= LONG and self.code != "partial")
        )

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{quote(self.name)}"

    @property
    def target(self) -> str:
        """Return the name of what is loaded."""
        return f"{self.schema}.part1" if self.leaf else self.full_name

    @property
    def alone(self) -> bool:
        """Return whether other tables can refer to the key."""
        return self.partitioned != "list" and self.key in ("primary", "unique")

    def of(self, use: str) -> Column | None:
        """Return the column with this use."""
        return next((column for column in self.columns if column.use == use), None)

    @property
    def id(self) -> str:
        """Return the name of the key's column."""
        column = self.of("key")
        assert column is not None
        return column.name

    def keys_of(self, row: Row) -> list[tuple[str, ...]]:
        """Return what no other row may have: two rows with an equal one exclude each other."""
        keys: list[tuple[str, ...]] = []
        region, code = self.of("region"), self.of("code")
        number = row[self.id]
        if self.key and number is not None:
            keys.append(("key", number, str(row[region.name]) if region else ""))
        if code is not None and self.same_nulls and row[code.name] is None:
            keys.append(("code",))
        if code is not None and (text := row[code.name]) is not None:
            match self.code:
                case "unique" | "deferred":
                    keys.append(("code", text))
                case "lower":
                    keys.append(("code", text.lower()))
                case "partial" if number is not None and int(number) > 50:
                    keys.append(("code", text))
        if self.span and (span := self.of("span")) is not None:
            # Spans lie in tens, and none is in two of them: those in one ten overlap.
            text = row[span.name]
            if text is not None:
                keys.append(("span", str(int(text[1:].split(",")[0]) // 10)))
        return keys


REGIONS = ("eu", "us", "jp")
MOST = 100_000
"""Keys are below; a table that is partitioned by ranges has no partition for others."""
LEAF = 40, 400
"""The keys of the partition that is loaded alone."""
LONG = 20_000
"""Characters at random of which an index takes less."""

STATES = ("P0001", "22023", "23514", "08006", "40001", "40P01", "57014", "57P01", "53100", "0A000", "XX000")
"""With which a trigger refuses a row."""

UP_SHARE = 0.3
TABLE_NAMES = ("t", "t", "t", "Order %s", "from", 'i"j', "ta.ble")
KEY_NAMES = ("id", "id", "Id", "key %")
_NAMES = ("a", "Name", "user", "tab\tle", "x%s", "ü", "long name", "c;--", "q'", 'd"q', "b_2", "z9")


def make_table(rng: Random, schema: str, version: int, encoding: str) -> Table:
    """Return a random table, whose names can be written in this encoding."""
    table = Table(schema, rng.choice(TABLE_NAMES), version)
    names = [name for name in _NAMES if name.isascii() or encoding in ("UTF8", "LATIN1")]
    rng.shuffle(names)
    table.key = rng.choices(["primary", "deferred", "unique", ""], [70, 8, 12, 10])[0]
    identity = rng.random() < 0.15
    clauses = "GENERATED BY DEFAULT AS IDENTITY" if identity else ""
    key = Column(
        rng.choice(KEY_NAMES),
        rng.choice(["int", "bigint"]),
        not_null=identity or table.key in ("primary", "deferred") or rng.random() < 0.5,
        use="key",
        clauses=clauses,
    )
    table.columns.append(key)
    if rng.random() < 0.25:
        table.partitioned = rng.choice(["range", "hash", "list"])
    for _ in range(rng.randrange(1, 5)):
        kind = rng.choice([*KINDS, "text", "text"])
        default = (
            (make_text(rng, "é").replace("\r", "") if kind == "text" else KINDS[kind].make(rng))
            if rng.random() < 0.2
            else None
        )
        table.columns.append(Column(names.pop(), kind, rng.random() < 0.3, default))
    _add_rules(rng, table, names)
    _add_surroundings(rng, table, names)
    rng.shuffle(table.columns)
    return table


def _add_rules(rng: Random, table: Table, names: list[str]) -> None:
    """Add columns that make rows depend on others."""
    if table.partitioned == "list":
        table.columns.append(Column(names.pop(), "short", not_null=True, use="region"))
    if rng.random() < 0.35:
        action = rng.choice(["", " ON DELETE CASCADE", " ON DELETE SET NULL"])
        table.parent = action + rng.choice(["", " DEFERRABLE", " DEFERRABLE INITIALLY DEFERRED"])
        table.columns.append(Column(names.pop(), "int", use="parent"))
    if table.alone and rng.random() < UP_SHARE:
        action = rng.choice(["", " ON DELETE CASCADE", " ON DELETE SET NULL"])
        table.up = action + rng.choice(["", "", " DEFERRABLE", " DEFERRABLE INITIALLY DEFERRED"])
        table.columns.append(Column(names.pop(), "bigint", use="up"))
    if not table.partitioned and rng.random() < 0.4:
        table.code = rng.choice(["unique", "deferred", "lower", "partial", "index", "index"])
        table.same_nulls = table.code == "unique" and table.version >= 15 and rng.random() < 0.3
        table.columns.append(Column(names.pop(), "text", rng.random() < 0.3, use="code"))
    if not table.partitioned and rng.random() < 0.15:
        table.span = True
        table.columns.append(Column(names.pop(), "span", use="span"))
    if table.alone and rng.random() < 0.4:
        table.child = rng.choice(["NO ACTION", "CASCADE", "SET NULL", "RESTRICT"])
        table.dangling = not table.partitioned and rng.random() < 0.5


def _add_surroundings(rng: Random, table: Table, names: list[str]) -> None:
    """Add triggers, computed columns, indexes and marks."""
    if rng.random() < 0.3:
        table.triggers |= set(rng.sample(["row", "statement", "before", "truncate"], rng.randrange(1, 4)))
    if rng.random() < 0.08:
        table.triggers.add("guard")
    if rng.random() < 0.1:
        table.triggers.add("raise")
        table.raises = rng.choice(STATES)
    if table.partitioned == "range":
        table.rest, table.leaf = rng.random() < 0.3, rng.random() < 0.25
    if table.leaf:
        table.triggers.discard("statement")  # it fires for statements that name the whole
    table.bare = bool(table.triggers & {"row", "statement"}) and rng.random() < 0.15
    table.noted = "row" in table.triggers and table.alone and rng.random() < 0.4
    table.rule = rng.random() < 0.06
    table.view = table.key == "primary" and not table.partitioned and rng.random() < 0.06
    if rng.random() < 0.25:
        table.computed[names.pop()] = "stored" if table.version < 18 else rng.choice(["stored", "virtual"])
    if "before" in table.triggers:
        table.computed["tag"] = "trigger"
    if rng.random() < 0.15:
        clauses = {
            "identity": "bigint GENERATED ALWAYS AS IDENTITY",
            "serial": "bigserial",
            "now": "timestamptz NOT NULL DEFAULT now()",
        }
        if table.partitioned and table.version < 17:  # identity columns of partitioned tables came with 17
            del clauses["identity"]
        table.any_value[names.pop()] = clauses[rng.choice(list(clauses))]
    plain = not table.any_value and set(table.computed.values()) <= {"trigger"}
    plain = plain and not any(column.clauses for column in table.columns)
    table.other_order = table.partitioned == "range" and plain and rng.random() < 0.5
    table.heir = not table.partitioned and plain and rng.random() < 0.08
    for column in table.columns:
        if rng.random() < 0.3 and column.kind in ("int", "date", "text", "numeric", "short", "mood", "uuid"):
            table.indexes.append(f"({_indexed(rng, column)})")
    table.extras = [word for word in ("comment", "cluster", "statistics", "grant") if rng.random() < 0.1]
    if rng.random() < 0.15:
        table.owner = "load_model_owner"


def _indexed(rng: Random, column: Column) -> str:
    name = quote(column.name)
    if column.kind == "text":  # a long text has no room in the index
        return f"left({name}, 20) text_pattern_ops"
    return f"{name}{rng.choice(['', ' DESC NULLS LAST'])}"
