"""What the module of a topic offers: its result as text, as a page, and as rows for CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from pgsweep.records.common import Provenance
from pgsweep.ui.kit.section import Page
from pgsweep.ui.kit.terminal import Terminal


class Result(Protocol):
    """A record that can be shown: it names its schema, and what made it."""

    @property
    def schema(self) -> str:
        """Return the name and number of the schema, like `pgsweep.predict/1`."""

    @property
    def provenance(self) -> Provenance | None:
        """Return what made the result, where that was noted."""


class Rows(NamedTuple):
    """A table in base units; None where a value is not known, which CSV leaves empty."""

    head: Sequence[str]
    lines: Sequence[Sequence[object]]


R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True)
class View(Generic[R]):
    """How the results of one type are shown.

    Attributes:
        record: the type.
        text: the result for a terminal or a pipe, with a line end after the last line. Every number's kind is
            named: measured, predicted or assumed.
        page: what the HTML report is made of.
        rows: one table; its head names the kind of each number.
    """

    record: type[R]
    text: Callable[[R, Terminal], str]
    page: Callable[[R], Page]
    rows: Callable[[R], Rows]


def listed(record: type[msgspec.Struct], name: str) -> Callable[[Any], Rows]:
    """Return what makes rows of the list of such records that a result has under a name: `plan.objects`."""
    records = attrgetter(name)
    return lambda result: rows_of(record, records(result))


def rows_of(record: type[msgspec.Struct], records: Iterable[msgspec.Struct]) -> Rows:
    """Return one line a record of that type, whose fields are the columns."""
    names = record.__struct_fields__
    return Rows(names, [[getattr(row, name) for name in names] for row in records])
