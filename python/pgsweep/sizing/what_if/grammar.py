"""The sentences of `--what-if`, in PostgreSQL's words: parsed, and checked against each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pgsweep.errors import UsageError
from pgsweep.plain import shown
from pgsweep.units import BLOCK_BYTES, parse_bytes

MOST_FACTOR: Final = 1000.0
MOST_ROWS_PER_SECOND: Final = 10_000_000.0
MOST_EVERY_SECONDS: Final = 7 * 86_400.0

FORMS: Final = (
    "'orders grows 2x', 'insert into orders 1000 rows/s', 'scan orders every 60s', 'keep orders warm', "
    "'without orders', 'connections 2x', 'ram 64GB', 'huge_pages on', 'shared_buffers 8GB'"
)
"""One of each, for hints."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One sentence.

    Attributes:
        text: as it was written.
    """

    text: str

    @property
    def of_load(self) -> bool:
        """Whether the load would be another one, not only the memory."""
        return True


@dataclass(frozen=True, kw_only=True)
class OfRelation(Asked):
    """A sentence about a relation.

    Attributes:
        relation: its name, or its schema and its name.
    """

    relation: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Grows(OfRelation):
    """The relation has this many times the blocks."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class Insert(OfRelation):
    """Rows are added at its end, besides those of today."""

    rows_per_second: float


@dataclass(frozen=True, kw_only=True)
class Scan(OfRelation):
    """All of it is read in order at intervals, besides what reads it today."""

    every_seconds: float


@dataclass(frozen=True, kw_only=True)
class Keep(OfRelation):
    """All of its blocks are in the pool at all times."""


@dataclass(frozen=True, kw_only=True)
class Without(OfRelation):
    """It is accessed on another server."""


@dataclass(frozen=True, kw_only=True)
class Connections(Asked):
    """This many times the sessions, each with the load of one today."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class OfMemory(Asked):
    """A sentence after which the load stays as it is."""

    @property
    def of_load(self) -> bool:
        """Whether the load would be another one."""
        return False


@dataclass(frozen=True, kw_only=True)
class Ram(OfMemory):
    """The pool and the page cache share this memory."""

    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class HugePages(OfMemory):
    """The shared memory lies in huge pages, or not."""

    on: bool


@dataclass(frozen=True, kw_only=True)
class SharedBuffers(OfMemory):
    """The pool has this size."""

    size_bytes: int


_NAME = r'(?P<name>(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)(?:\.(?:"(?:[^"]|"")+"|[^\W\d][\w$]*))?)'
_NUMBER = r"(?P<number>\d+(?:\.\d+)?)"
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def parse(texts: Sequence[str]) -> tuple[Asked, ...]:
    """Return what the sentences ask.

    Raises:
        UsageError: one of them cannot be read, or two contradict each other.
    """
    found = tuple(_one(text) for text in texts)
    _check_together(found)
    return found


def _one(text: str) -> Asked:
    for pattern, make in _KINDS:
        match = re.fullmatch(pattern, text.strip(), re.IGNORECASE)
        if match is not None:
            return make(text.strip(), match)
    raise UsageError(
        f"`{shown(text)}` is not a what-if",
        cause="it has none of the known forms; names with other characters than letters, digits, _ and $ "
        "are written in double quotes, as in SQL: 'without \"Orders 2024\"'",
        hint=f"write one of these: {FORMS}",
    )


def _name(match: re.Match[str]) -> tuple[str, ...]:
    """Return the parts of a name as the catalog has them: folded unless they are quoted."""
    parts = re.findall(r'"(?:[^"]|"")+"|[^."]+', match["name"])
    return tuple(part[1:-1].replace('""', '"') if part.startswith('"') else part.lower() for part in parts)


def _factor(text: str, match: re.Match[str]) -> float:
    return _between(text, float(match["number"]), 0.0, MOST_FACTOR, "connections 2x")


def _between(text: str, value: float, above: float, most: float, example: str) -> float:
    if not above < value <= most:
        raise UsageError(
            f"`{shown(text)}` has a number out of range",
            cause=f"it must be above {above:.0f} and at most {most:.0f}",
            hint=f"for example --what-if '{example}'",
        )
    return value


def _grows(text: str, match: re.Match[str]) -> Asked:
    factor = _between(text, float(match["number"]), 1.0, MOST_FACTOR, "orders grows 2x")
    return Grows(text=text, relation=_name(match), factor=factor)


def _insert(text: str, match: re.Match[str]) -> Asked:
    rows = _between(text, float(match["number"]), 0.0, MOST_ROWS_PER_SECOND, "insert into orders 1000 rows/s")
    return Insert(text=text, relation=_name(match), rows_per_second=rows)


def _scan(text: str, match: re.Match[str]) -> Asked:
    number = float(match["number"] or 1) * _SECONDS[match["unit"].lower()]
    seconds = _between(text, number, 0.0, MOST_EVERY_SECONDS, "scan orders every 60s")
    return Scan(text=text, relation=_name(match), every_seconds=seconds)


def _memory(text: str, match: re.Match[str]) -> Asked:
    size = parse_bytes(match["size"])
    if size <= 0:
        raise UsageError(f"`{shown(text)}` names no memory", hint="for example --what-if 'ram 64GB'")
    return Ram(text=text, memory_bytes=size)


def _size(text: str, match: re.Match[str]) -> Asked:
    return SharedBuffers(text=text, size_bytes=parse_bytes(match["size"]) // BLOCK_BYTES * BLOCK_BYTES)


_KINDS: Final[tuple[tuple[str, Callable[[str, re.Match[str]], Asked]], ...]] = (
    (rf"connections\s+{_NUMBER}\s*x", lambda t, m: Connections(text=t, factor=_factor(t, m))),
    (r"ram\s+(?P<size>\d\S*(?:\s?[a-z]+)?)", _memory),
    (r"shared_buffers\s+(?P<size>\d\S*(?:\s?[a-z]+)?)", _size),
    (r"huge_pages\s+(?P<on>on|off)", lambda t, m: HugePages(text=t, on=m["on"].lower() == "on")),
    (rf"insert\s+into\s+{_NAME}\s+{_NUMBER}\s*rows\s*/\s*s", _insert),
    (rf"scan\s+{_NAME}\s+every\s+(?P<number>\d+(?:\.\d+)?)?\s*(?P<unit>ms|s|min|m|h)", _scan),
    (rf"keep\s+{_NAME}\s+warm", lambda t, m: Keep(text=t, relation=_name(m))),
    (rf"without\s+{_NAME}", lambda t, m: Without(text=t, relation=_name(m))),
    (rf"{_NAME}\s+grows\s+{_NUMBER}\s*x", _grows),
)


def _check_together(asked: Sequence[Asked]) -> None:
    """Refuse sentences that contradict each other."""
    for place, one in enumerate(asked):
        for other in asked[:place]:
            if _contradict(one, other):
                raise UsageError(
                    f"`{shown(other.text)}` and `{shown(one.text)}` contradict each other",
                    hint="leave one of them out, or ask for each in a run of its own",
                )


def check_memory(asked: Sequence[Asked]) -> None:
    """Refuse a what-if that names the memory which --ram names too.

    Where the evidence does not know the memory, --ram is that of today, and a what-if another one.

    Raises:
        UsageError: there is one.
    """
    for one in asked:
        if isinstance(one, Ram):
            raise UsageError(
                f"`{shown(one.text)}` and --ram both name the memory",
                hint="leave --ram out to compare with today's memory",
            )


def _contradict(one: Asked, other: Asked) -> bool:
    # Those about relations are compared when these are known: relations.py, `check_relations`.
    return type(one) is type(other) and not isinstance(one, OfRelation | SharedBuffers)
