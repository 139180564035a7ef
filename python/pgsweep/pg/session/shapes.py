"""The shape of each query's rows: types, ranges, and their number.

A true PostgreSQL server gives no other rows. This is checked where they come in (answers.py), so the rest of
the program relies on it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
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


@cache
def _shapes() -> dict[str, str]:
    """Return by query what queries/shapes.toml says of its rows."""
    return tomllib.loads(
        Path(__file__).parents[1].joinpath("queries", "shapes.toml").read_text(encoding="utf-8")
    )


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
    text = _shapes().get(name)
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
