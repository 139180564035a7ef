"""The shape of each query's rows: types, ranges, and their number.

A true PostgreSQL server gives no other rows. This is checked where they come in (answers.py), so the rest of
the program relies on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Final

OID_MAX: Final = 2**32 - 1
_INT8_MAX: Final = 2**63 - 1
_TEXT_MAX: Final = 1 << 20
_NUMBER_MAX: Final = 1e30


@dataclass(frozen=True)
class Kind:
    """One kind of value: its Python types, and the least and the most it can be; of a text its length.

    With `powers` it is a power of two.
    """

    types: frozenset[type]
    least: float | None
    most: float | None
    powers: bool = False

    def fault(self, values: Sequence[Any]) -> bool:
        """Return whether one of the values is of another kind; none of them is None."""
        if not set(map(type, values)) <= self.types:
            return True
        if not values or self.least is None or self.most is None:
            return False
        if self.types & _TEXTS:
            return max(map(len, values)) > self.most
        if float in self.types and not all(map(math.isfinite, values)):
            return True
        if min(values) < self.least or max(values) > self.most:
            return True
        return self.powers and any(value & (value - 1) for value in values)


_TEXTS = frozenset({str, bytes})


def _kind(
    types: tuple[type, ...], least: float | None = None, most: float | None = None, *, powers: bool = False
) -> Kind:
    return Kind(frozenset(types), least, most, powers)


_KINDS: Final = {
    "any": _kind((str, int)),
    "bool": _kind((bool,)),
    "text": _kind((str,), 0, _TEXT_MAX),
    "bytes": _kind((bytes,), 0, _TEXT_MAX),
    # Microseconds since 1970, until 2255.
    "time": _kind((int,), 0, 2**53),
    "int": _kind((int,), -_INT8_MAX - 1, _INT8_MAX),
    "count": _kind((int,), 0, _INT8_MAX),
    "number": _kind((int, float, Decimal), -_NUMBER_MAX, _NUMBER_MAX),
    "oid": _kind((int,), 0, OID_MAX),
    # A process of the server (PID_MAX_LIMIT, include/linux/threads.h; other systems have fewer).
    "pid": _kind((int,), 1, 2**31 - 1),
    # BlockNumber, block.h; a fork cannot have more.
    "blocks": _kind((int,), 0, OID_MAX),
    # shared_buffers: 16 to INT_MAX / 2 (guc_tables.c).
    "pool": _kind((int,), 16, 2**30 - 1),
    # BLCKSZ: 1 kB to 32 kB (configure).
    "blocksize": _kind((int,), 1024, 32768, powers=True),
    # MAX_BACKENDS, postmaster.h.
    "backends": _kind((int,), 1, 2**18 - 1),
    # IsValidWalSegSize, xlog_internal.h.
    "segment": _kind((int,), 1 << 20, 1 << 30, powers=True),
    "version": _kind((int,), 90000, 999999),
}

_LISTS: Final = {"names": "bytes", "oids": "oid"}

_SHAPES: Final = {
    "active": "pid bytes? bytes? int? bool",
    "activity": "pid bytes? bytes? bytes? bytes? text? bytes? bool bool",
    "alter_system": "text text text?",
    "alter_system_allowed": "one: bool bool bool",
    "backends": "text? text? text? count",
    "budget": "text number",
    "buffercache": "one: bool text? text bool bool",
    "chosen": "few: text text oids oid",
    "cluster": "one: text time",
    "complete_databases": "bytes",
    "complete_relations": "bytes",
    "complete_schemas": "bytes",
    "connectable": "oid bytes bool bool? bool",
    "count_databases": "oidtext number?*",
    "count_every_database": "oid number number number bool",
    "count_io": "text number?*",
    "count_relations": "oidtext number?*",
    "count_writers": "one: number?*",
    "counted_since": "few: time?",
    "databases": "oid bytes",
    "evict": "one: count count",
    "extension": "one: text? text? text? bool",
    "extension_trust": "few: bytes? bool bytes bytes bool",
    "file_settings": "bytes? bytes? bytes? int? text?",
    "free_connections": "one: count",
    "history_claim": "one: bool pid? text?",
    "history_owner": "one: bool bool bytes",
    "history_size": "one: count",
    "keep_claim": "one: bool pid?",
    "keep_named": "few: oid bytes bytes",
    "keep_places": "oid oid oid oid? blocks?",
    "keep_relations": "oid bytes bytes text bool oid? bytes bytes",
    "keep_touch": "few: count int int number",
    "lab_database": "few: bytes",
    "lab_end_sessions": "pid bool",
    "lab_settings": "text text bool",
    "load_alive": "one: bool",
    "load_bound": "one: bytes?",
    "load_build_progress": "pid text int int int int",
    "load_catalog": "bytes bytes",
    "load_checks": "bytes bytes?",
    "load_claimed": "few: pid",
    "load_code": "oid bytes bytes bytes bytes? bytes",
    "load_columns": "bytes bytes text bool bool bool bytes?",
    "load_find": "few: text text text text",
    "load_hindrances": "bytes bool bool bool bool",
    "load_holders": "pid text?",
    "load_indexes": "bytes bytes bytes bytes? text? bool bool bytes bytes bytes count text text?",
    "load_journal": "oid bool text? bool count bytes",
    "load_keys": "bytes bool bytes bytes bytes? bytes? text? bool",
    "load_marked": "text bytes",
    "load_needed": "bytes",
    "load_new": "few: bytes bytes bytes bool count",
    "load_objects": "count text bool",
    "load_outcome": "one: text?",
    "load_parent": "one: bytes bytes bytes bool",
    "load_path": "text bytes? bool bool bytes?",
    "load_pieces": "count count count count count count count bool",
    "load_referencing": "bytes bytes",
    "load_references": "bool bytes bytes",
    "load_rejects": "count count text bytes",
    "load_same": "one: bool",
    "load_unreadable": "count text",
    "load_table": "few: oid bytes bytes bytes text text bytes bool bool bool bool bool bool bool bool"
    " count count count count bool bool bool text count count text text count bool",
    "load_triggers": "bytes bytes text bool bytes bytes",
    "load_unfinished": "text oid text text",
    "load_wal": "one: int",
    "open_transactions": "pid number number?",
    "own_work_mem": "text count",
    "partition_roots": "oid bytes bytes",
    "pool_relations": "binary: 11",
    "pool_started": "one: int",
    "postmaster": "one: pid int",
    "prewarm": "count count?",
    "prewarm_fork": "one: number?",
    "primary": "few: text? int?",
    "provider": "one: text?",
    "recovery": "one: bool pid?",
    "relation": "few: oid bytes bytes oid oid oid? blocks? bytes bytes",
    "relations": "oid bytes? bytes text oid oid oid oid int number",
    "scanned_indexes": "oid count bool",
    "schema_trust": "text bool bool",
    "server": "one: version text blocksize pool oid bytes oid bool",
    "server_born": "one: count",
    "server_host": "one: text?",
    "server_place": "one: bytes? text? bool bool",
    "session": "one: bytes bytes bytes? bool? bool bool count count names? text int? bool",
    "setting_sources": "text bytes? text bytes? bool",
    "setting_units": "text text? bool",
    "settings": "text text?",
    "settle": "one: any",
    "shared_memory": "one: text text? count text int? backends segment bool bool bool",
    "shared_memory_sum": "one: count?",
    "sizes": "oid blocks? blocks? blocks?",
    "snapshot": "binary: 9",
    "snapshot_of": "binary: 9",
    "snapshot_sample": "binary: 9",
    "standbys": "one: count",
    "startup_settings": "text text?",
    "statement_texts": "int bytes",
    "statements": "bytes? bytes? int? number number number number number",
    "survived": "one: number number? bool",
    "summary": "one: count",
    "tablespaces": "oid",
    "temporary": "oid",
    "unlogged": "oid",
    "warmable": "oid",
    "warmers": "one: count",
    "work_memory": "one: count",
}
"""By query: a word a column; `?` after it where null may stand, `*` where more columns of the kind follow.
`one:` is one row, `few:` none or one, `binary:` a number of columns that the caller takes apart itself."""


@dataclass(frozen=True)
class Shape:
    """The rows of one query."""

    name: str
    rows: str
    columns: tuple[tuple[str, bool], ...]
    repeats: bool
    width: int

    def fault_of_result(self, rows: int, width: int) -> str | None:
        """Return what is wrong with the number of rows and columns."""
        if width != self.width and not (self.repeats and width > self.width):
            return f"{width} columns, not {self.width}"
        if (self.rows == "one" and rows != 1) or (self.rows == "few" and rows > 1):
            return f"{rows} rows, not one"
        return None

    def fault(self, rows: Sequence[Sequence[Any]]) -> str | None:
        """Return what is wrong with the rows, which have the right number of columns."""
        for number, column in enumerate(zip(*rows, strict=True)):
            kind, nullable = self.columns[min(number, len(self.columns) - 1)]
            values = [value for value in column if value is not None] if nullable else column
            if _fault(kind, values):
                return f"column {number + 1} is not of the kind `{kind}`"
        return None


def _fault(kind: str, values: Sequence[Any]) -> bool:
    if kind == "oidtext":
        return _KINDS["text"].fault(values) or not all(
            value.isascii() and value.isdigit() and len(value) <= 10 for value in values
        )
    if kind in _LISTS:
        return not all(isinstance(value, list) for value in values) or any(
            _KINDS[_LISTS[kind]].fault(value) for value in values
        )
    return _KINDS[kind].fault(values)


@cache
def shape_of(name: str) -> Shape | None:
    """Return the shape of a query's rows; None where it has none."""
    text = _SHAPES.get(name)
    if text is None:
        return None
    rows, _, words = text.rpartition(":")
    if rows == "binary":
        return Shape(name, rows, (), repeats=False, width=int(words))
    columns = words.split()
    return Shape(
        name=name,
        rows=rows,
        columns=tuple((word.rstrip("?*"), "?" in word) for word in columns),
        repeats=columns[-1].endswith("*"),
        width=len(columns),
    )
