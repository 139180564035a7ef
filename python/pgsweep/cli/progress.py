"""Progress on stderr: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pgsweep.cli.clean import raw_stream
from pgsweep.cli.settings import Settings
from pgsweep.plain import cleaned, shown
from pgsweep.ui.kit.numbers import seconds as seconds_text
from pgsweep.units import format_percent

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_LINE_EVERY_SECONDS = 15.0


class ConsoleProgress:
    """A `Progress` that a person follows; as a context manager, so that the bar goes when the work ends.

    Args:
        settings: of this run.
        after_seconds: no bar is shown before, as many answers are there by then.
    """

    def __init__(self, settings: Settings, after_seconds: float = 0.0) -> None:
        self._settings = settings
        wanted = settings.progress and not settings.quiet
        self._bar = _Bar(after_seconds) if wanted and sys.stderr.isatty() else None
        self._lines = wanted and self._bar is None
        self._total: float | None = None
        self._said_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def pause(self) -> None:
        """Take the bar away until the next stage."""
        if self._bar is not None:
            self._bar.stop()

    @property
    def is_bar(self) -> bool:
        """Whether a bar is shown, and no lines are written."""
        return self._bar is not None

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
    """The bar itself; rich is imported when it is shown first."""

    def __init__(self, after_seconds: float) -> None:
        self._show_at = time.monotonic() + after_seconds
        self._progress: RichProgress | None = None
        self._task: TaskID | None = None
        self._title = ""
        self._total: float | None = None
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def stage(self, title: str, total_seconds: float | None) -> None:
        with self._lock:
            self._clear()
            self._title, self._total = title, total_seconds
            later = self._show_at - time.monotonic()
            if later > 0:
                self._timer = threading.Timer(later, self._show)
                self._timer.daemon = True
                with contextlib.suppress(RuntimeError):  # no thread can be started here
                    self._timer.start()
            else:
                self._show()

    def advance(self, done_seconds: float) -> None:
        self._update(completed=done_seconds, left=self._left(done_seconds))

    def portion(self, done_ratio: float, text: str) -> None:
        self._update(total=1.0, completed=done_ratio, left=text)

    def write(self, text: str) -> None:
        self._started().console.print(text, markup=False, highlight=False)

    def stop(self) -> None:
        with self._lock:
            self._clear()
            if self._progress is not None:
                self._progress.stop()
                self._progress = None

    def _clear(self) -> None:
        """Take the stage away, shown or not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, visible=False)
            self._progress.remove_task(self._task)
        self._task = None
        self._title = ""

    def _show(self) -> None:
        with self._lock:
            if self._title and self._task is None:
                self._task = self._started().add_task(self._title, total=self._total, left=self._left(0.0))

    def _update(self, **fields: Any) -> None:
        with self._lock:
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, **fields)

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
