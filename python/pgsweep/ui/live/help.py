"""What the keys and columns of `pgsweep top` mean, and the screen that says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from pgsweep.plain import shown
from pgsweep.records.cache import Missing
from pgsweep.ui.kit.terminal import Terminal

_KEYS = (
    ("q", "quit"),
    ("? h", "this page; any key closes it, arrows scroll it"),
    ("Space", "pause the screen; again: resume"),
    ("+ -", "slower or faster: a longer or shorter interval"),
    ("/", "show relations whose name contains a text; Escape: all again"),
    ("arrows", "scroll the table; also PageUp, PageDown, Home"),
    ("p", "most in the pool first"),
    ("c", "fastest change first, growing or shrinking"),
    ("u", "most buffers at usage_count 4 and 5 first: the hottest"),
    ("d", "most dirty first"),
    ("f", "most in the operating system's page cache first"),
    ("t", "most held twice first"),
    ("n", "by name"),
    ("s", "all system catalogs as one row; again: each by itself"),
    ("r", "reverse the order; so does the same key again"),
)

_WORDS = (
    ("pool", "shared_buffers; in the bar: dirty, clean, unused"),
    ("usage", "share of the used buffers at usage_count 0 to 5"),
    ("pass", "time of one clock pass over the pool (peek only)"),
    ("files", "relations' files, what of them lies in the page cache, in both"),
    ("", "caches (whole blocks), in neither; looked at less often"),
    ("hits", "page accesses found in the pool; reads: the others, which the"),
    ("", "page cache or the disk had to serve (pg_stat_database, all of it)"),
    ("evicted", "pages that made room for others (pg_stat_io, 16 and later)"),
    ("allocated", "buffers given out (buffers_alloc)"),
    ("backends", "clients' sessions, and what the active ones wait for"),
    ("change/s", "by how much the relation's part of the pool grows or shrinks"),
    ("4-5", "share of its buffers at usage_count 4 or 5"),
    ("012345", "how its buffers spread over usage_count 0 to 5"),
)


def help_text(missing: Sequence[Missing], terminal: Terminal) -> str:
    """Return the page; ends with what could not be looked at, in full."""
    lines = ["Keys", ""]
    lines += [f"  {key:<10}{text}" for key, text in _KEYS]
    lines += ["", "What is shown", ""]
    lines += [f"  {word:<10}{text}" for word, text in _WORDS]
    if missing:
        lines += ["", "Not seen", ""]
        for entry in missing:
            lines.append(f"  {shown(entry.what)}: {shown(entry.why)}")
            if entry.enable:
                lines.append(f"    {terminal.pick('→', '->')} {shown(entry.enable)}")
    return "\n".join(lines)


class Help(ModalScreen[None]):
    """What keys and columns mean; any key but those that scroll closes it."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Make the page."""
        with VerticalScroll(can_focus=False):
            yield Static(Text(self._text))

    def action_scroll(self, lines: int) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def on_key(self, event: events.Key) -> None:
        """Close, whatever the key."""
        if event.key not in ("up", "down", "pageup", "pagedown"):
            event.stop()
            self.dismiss()
