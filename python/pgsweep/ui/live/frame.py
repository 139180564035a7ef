"""The parts around the page of `pgsweep top`: the bar at the top, the keys at the bottom, the height."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from rich.text import Text

from pgsweep.plain import shown
from pgsweep.records.top import TopSample
from pgsweep.ui.kit.line import Line, cut, shortened
from pgsweep.ui.kit.numbers import count, server_name
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.live.text import KEYS

_LEAST_PLACE = 8


def title_bar(
    sample: TopSample | None,
    interval_seconds: float,
    states: Sequence[str],
    terminal: Terminal,
    *,
    server: str = "",
) -> Text:
    """Return the bar: what is looked at and how often, and the states that the screen is in.

    Where there is no room for all of it, the command's name is left out and the server's place shortened.

    Args:
        sample: the last look, where there was one.
        interval_seconds: as asked for; the bar names the longer one where looks are held back.
        states: words such as PAUSED.
        terminal: as wide as the bar.
        server: where it is, in words.
    """
    left, right = " pgsweep top ", ""
    if sample is not None:
        at = datetime.datetime.fromisoformat(sample.at).astimezone()
        every = max(sample.interval_seconds if sample.held_back else 0, interval_seconds)
        right = f"{sample.pool_source}  every {count(every)} s  {at:%H:%M:%S} "
    right = "".join(f"{state}  " for state in states) + right
    if sample is not None:
        version, database = server_name(shown(sample.server_version)), shown(sample.database)
        room = terminal.width - len(right) - len(f"  {version} at , {database} ")
        whole = shown(server)
        if room < len(left) + len(whole):
            left = ""
        place = shortened(whole, room - len(left), terminal) if room - len(left) >= _LEAST_PLACE else ""
        left += f" {version} at {place}, {database}" if place else f" {version}, {database}"
    space = max(1, terminal.width - len(left) - len(right))
    bar = Text(shown(left), style="bold reverse")
    bar.append(" " * space + right)
    bar.truncate(terminal.width)
    return bar


def legend(terminal: Terminal, *, order: str, paused: bool) -> list[Line]:
    """Return two lines with the keys; the present order is marked."""
    keys = [("q", "Quit"), ("?", "Help"), ("Space", "Go on" if paused else "Pause")]
    keys += [("+", "Slower"), ("-", "Faster"), ("/", "Filter"), ("r", "Reverse")]
    first: Line = []
    for key, word in keys:
        first += [(key, ("bold",)), (f" {word}  ", ("cyan",))]
    second: Line = [("sort: ", ())]
    for sort, (key, word) in KEYS.items():
        mark = terminal.pick("●", "*") if sort == order else " "
        second += [(key, ("bold",)), (f" {word}{mark} ", ("cyan",))]
    return [cut(first, terminal), cut(second, terminal)]


def filled(top: list[Text], middle: list[Text], foot: list[Text], height: int) -> list[Text]:
    """Return exactly `height` lines: the foot at the bottom, and as much of the rest as there is room for."""
    foot = foot[-height:]
    body = [*top, *middle][: height - len(foot)]
    return [*body, *(Text("") for _ in range(height - len(foot) - len(body))), *foot]


def as_text(line: Line) -> Text:
    """Return a line as Textual draws it."""
    text = Text(no_wrap=True, overflow="crop")
    for part, paints in line:
        text.append(shown(part), style=" ".join(paints))
    return text
