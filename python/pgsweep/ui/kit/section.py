"""What a page is made of: sections with figures of the summary, charts and a table; no HTML here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgsweep.records.prediction import Level, Verdict
from pgsweep.ui.kit.numbers import seconds, server_name
from pgsweep.ui.kit.table import Table

VERDICTS: dict[Level, str] = {
    "reliable": "The prediction is reliable",
    "rough": "The prediction is rough; the reasons follow",
    "refused": "No prediction: the evidence does not allow one",
}
"""Verdicts as headlines."""


@dataclass(frozen=True)
class Fact:
    """One figure of the summary: its value, what it is, and whether it was measured or predicted."""

    value: str
    label: str
    kind: str = ""


@dataclass(frozen=True)
class Section:
    """One part of the page: a title, a sentence, figures of the summary, charts with captions, a table."""

    title: str
    ident: str
    lead: str = ""
    facts: Sequence[Fact] = ()
    figures: Sequence[tuple[str, str]] = ()
    table: Table[Any] | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A result as a page.

    Attributes:
        title: the headline, which gives the answer.
        lead: the sentence below it.
        sections: the parts, in order.
        verdict: how far a prediction may be trusted, where the result is one.
        notes: what else must be known.
        explains_kinds: whether a part says what measured, predicted and the interval mean.
        made: what the provenance begins with, name and value, before what every result has.
    """

    title: str
    lead: str
    sections: Sequence[Section]
    verdict: Verdict | None = None
    notes: Sequence[str] = ()
    explains_kinds: bool = False
    made: Sequence[tuple[str, str]] = ()

    @property
    def verdict_title(self) -> str:
        """The verdict as a headline, or nothing."""
        return VERDICTS[self.verdict.level] if self.verdict else ""


def made_on(server_version: str, machine: str, took_seconds: float) -> list[tuple[str, str]]:
    """Return what the provenance says of a result that private servers gave."""
    return [("server", server_name(server_version)), ("host", machine), ("took", seconds(took_seconds))]
