"""How a feature reports its progress, whoever shows it.

Features take a `Progress`, or a `Listener` where progress is not measured in seconds, and never print; the
command line shows it as a bar, a notebook ignores it.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

S_contra = TypeVar("S_contra", contravariant=True)
"""How far a job is: of reading, of copying."""


class Progress(Protocol):
    """Listens to a long job."""

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        """Say that a stage begins, and how long it is expected to take where that is known."""

    def advance(self, done_seconds: float) -> None:
        """Say how many seconds of the present stage are done."""

    def note(self, text: str) -> None:
        """Say one line that the user should see (a cost, a warning), now."""


class Listener(Protocol[S_contra]):
    """Listens to a job that reports its state."""

    def note(self, text: str) -> None:
        """Receive a line that the user should see, now."""

    def state(self, state: S_contra) -> None:
        """Receive how far the job is."""


class NullListener:
    """A `Progress` and a `Listener` that ignore everything."""

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        """Ignore the stage."""

    def advance(self, done_seconds: float) -> None:
        """Ignore the step."""

    def note(self, text: str) -> None:
        """Ignore the note."""

    def state(self, state: object) -> None:
        """Ignore the state."""
