"""Progress on stderr: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pgsweep.cli.clean import raw_stream
from pgsweep.cli.settings import Settings
from pgsweep.plain import cleaned, shown
from pgsweep.ui.numbers import seconds as seconds_text
from pgsweep.units import format_percent

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_LINE_EVERY_SECONDS = 15.0


class ConsoleProgress:
    """A `Progress` that a person follows; as a context manager, so that the bar goes when the work ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        wanted = settings.progress and not settings.quiet
        self._bar = _Bar() if wanted and sys.stderr.isatty() else None
        self._lines = wanted and self._bar is None
        self._total: float | None = None
        self._said_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        """Begin a new bar, or write a line."""
        title = shown(title)
        self._total = total_seconds
        self._said_at = time.monotonic()
        if self._bar is not None:
            self._bar.stage(title, total_seconds)
        elif self._lines:
            expected = f" (about {seconds_text(total_seconds)})" if total_seconds else ""
            self._settings.say(f"{title}{expected}")

    def advance(self, done_seconds: float) -> None:
        """Move the bar, or write a line when the last is long ago."""
        if self._bar is not None:
            self._bar.advance(done_seconds)
        elif self._lines and time.monotonic() - self._said_at >= _LINE_EVERY_SECONDS:
            self._said_at = time.monotonic()
            left = ""
            if self._total is not None and self._total > done_seconds:
                left = f", {seconds_text(self._total - done_seconds)} left"
            self._settings.say(f"  {seconds_text(done_seconds)} done{left}")

    def portion(self, done_ratio: float, text: str) -> None:
        """Move the bar of a stage that is not measured in seconds, with a text beside it."""
        text = shown(text)
        if self._bar is not None:
            self._bar.portion(done_ratio, text)
        elif self._lines and time.monotonic() - self._said_at >= _LINE_EVERY_SECONDS:
            self._said_at = time.monotonic()
            self._settings.say(f"  {format_percent(done_ratio)}, {text}")

    def note(self, text: str) -> None:
        """Write the line above the bar."""
        if self._settings.quiet:
            return
        if self._bar is not None:
            self._bar.write(cleaned(text))
        else:
            self._settings.say(text)


class _Bar:
    """The bar itself; rich is imported when the first stage begins."""

    def __init__(self) -> None:
        self._progress: RichProgress | None = None
        self._task: TaskID | None = None
        self._total: float | None = None

    def stage(self, title: str, total_seconds: float | None) -> None:
        progress = self._started()
        if self._task is not None:
            progress.update(self._task, visible=False)
            progress.remove_task(self._task)
        self._total = total_seconds
        self._task = progress.add_task(title, total=total_seconds, left=self._left(0.0))

    def advance(self, done_seconds: float) -> None:
        if self._task is not None:
            self._started().update(self._task, completed=done_seconds, left=self._left(done_seconds))

    def portion(self, done_ratio: float, text: str) -> None:
        if self._task is not None:
            self._started().update(self._task, total=1.0, completed=done_ratio, left=text)

    def write(self, text: str) -> None:
        self._started().console.print(text, markup=False, highlight=False)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _left(self, done_seconds: float) -> str:
        if self._total is None:
            return ""
        left = self._total - done_seconds
        return f"{seconds_text(left)} left" if left >= 1 else "nearly done"

    def _started(self) -> RichProgress:
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}", markup=False),
                console=Console(file=raw_stream(sys.stderr)),
                transient=True,
            )
            self._progress.start()
        return self._progress
