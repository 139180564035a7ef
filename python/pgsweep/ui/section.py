"""What a page is made of: sections with figures of the summary, pictures and a table; no HTML here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Measured, Predicted = "measured", "predicted"
"""The kinds of numbers, as the page names them and the style sheet colours them."""


@dataclass(frozen=True)
class Fact:
    """One figure of the summary: its value, what it is, and whether it was measured or predicted."""

    value: str
    label: str
    kind: str = ""


@dataclass(frozen=True)
class Group:
    """Words over one or more columns of a table, and the kind of number beneath them."""

    text: str
    columns: int = 1
    kind: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a value, and a word of remark where it needs one; `code` is to be copied."""

    text: str
    note: str = ""
    code: bool = False


@dataclass(frozen=True)
class Section:
    """One part of the page: a title, figures, and a table; `words` where it holds sentences, not numbers."""

    title: str
    ident: str
    lead: str
    facts: Sequence[Fact]
    figures: Sequence[tuple[str, str]]
    groups: Sequence[Group]
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    marked: int | None = None
    notes: Sequence[str] = field(default=())
    words: bool = False
