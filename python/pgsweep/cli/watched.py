"""An answer that is waited for: the curve on the terminal at once, then what is computed and for how long."""

from __future__ import annotations

import os
import re
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from pgsweep.cli.output import Output, write_stdout
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.cli.settings import Settings
from pgsweep.ui.kit.numbers import seconds as seconds_text

if TYPE_CHECKING:
    from pgsweep.records.prediction import PredictResult

_UNSEEN_SECONDS: Final = 2.0
"""Most answers are there by then, and a bar would only flicker."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_ROWS_OF_BAR: Final = 2


class Watched:
    """A `Watch` on a person's terminal, as a context manager; when it ends only what came before it is there.

    Elsewhere it writes one line to stderr, as ever, and stdout gets the whole answer alone.

    Args:
        settings: of this run.
        output: where the answer goes; None where the curve is not a part of it.
    """

    def __init__(self, settings: Settings, output: Output | None = None) -> None:
        self._progress = ConsoleProgress(settings, _UNSEEN_SECONDS)
        self._output = output
        self._size: os.terminal_size | None = None
        self._rows = 0
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.stage("predicting")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        # In a window of another size the lines have moved; an interrupt leaves what is known.
        if self._rows and not isinstance(error, KeyboardInterrupt) and self._size == _window():
            write_stdout(f"\x1b[{self._rows}A\x1b[J", control=True)
        self._rows = 0

    def begins(self, what: str, about_seconds: float | None = None) -> None:
        """Begin another stage of the bar."""
        if self._progress.is_bar:
            self._begun = time.monotonic()
            about = "" if about_seconds is None else f", about {seconds_text(about_seconds)}"
            self._progress.stage(f"{what}{about}")

    def curve(self, result: PredictResult) -> None:
        """Show the curve, as much of it as the window holds."""
        self._progress.pause()
        text = None if self._output is None else self._output.for_terminal(result)
        self._size = _window()
        if text and self._size is not None:
            shown: list[str] = []
            for line in text.splitlines():
                width = len(_COLOURS.sub("", line))
                rows = max(1, -(-width // self._size.columns))
                if self._rows + rows > self._size.lines - _ROWS_OF_BAR:
                    break
                self._rows += rows
                shown.append(line)
            write_stdout("".join(f"{line}\n" for line in shown))
        self.begins("simulating the page cache")

    def simulated(self, share: float) -> None:
        """Move the bar."""
        if self._progress.is_bar:
            left = (time.monotonic() - self._begun) * (1 / share - 1)
            self._progress.portion(share, f"{seconds_text(left)} left" if left >= 1 else "nearly done")


def _window() -> os.terminal_size | None:
    """Return the size of the terminal that stdout is; None where it is none."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return None
    return size if size.columns > 0 and size.lines > _ROWS_OF_BAR else None
