"""A result shown repeatedly in the same place, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pgsweep.cli.clean import raw_stream
from pgsweep.cli.settings import Settings
from pgsweep.plain import cleaned

if TYPE_CHECKING:
    from pgsweep.ui.kit.view import Result

_TO_THE_TOP, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
"""ECMA-48's CUP, EL and ED: text is written over the former one, so that nothing flickers."""


def watch(look: Callable[[], Result], seconds: float, settings: Settings) -> None:
    """Show the result every `seconds` seconds: on a terminal in place, else one after the other.

    Args:
        look: gives the result.
        seconds: from one look to the next.
        settings: what can be shown.

    Raises:
        PgsweepError: whatever `look` raises.
    """
    from pgsweep.ui.results import to_text

    first = True
    due = time.monotonic()
    try:
        while True:
            result = look()
            terminal = settings.terminal()
            text = to_text(result, terminal)
            if terminal.interactive:
                lines = cleaned(text, colours=True).split("\n")[: _rows() - 1]
                begin = ("\x1b[2J" if first else "") + _TO_THE_TOP
                text = begin + "".join(f"{line}{_REST_OF_LINE}\n" for line in lines) + _REST_OF_SCREEN
            elif not first:
                text = "\n" + text
            screen = raw_stream(sys.stdout) if terminal.interactive else sys.stdout
            screen.write(text)
            screen.flush()
            first = False
            due = max(due + seconds, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        return


def _rows() -> int:
    import shutil

    return max(5, shutil.get_terminal_size((80, 24)).lines)
