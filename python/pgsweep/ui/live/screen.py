"""The live screen of `pgsweep top`: keys, resizing, and the page of `top_text` drawn repeatedly.

It sees records only; who takes the looks is a `Control` that it is given. The page is drawn as text, line by
line, in the terminal's own colours and background, so that it looks at home everywhere and costs little over
a slow line.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import functools
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

import msgspec
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.widgets import Input, Static

from pgsweep.errors import PgsweepError
from pgsweep.plain import shown
from pgsweep.records.top import TopSample, TopView
from pgsweep.ui.kit.line import Line, cut
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.live.frame import as_text, filled, legend, title_bar
from pgsweep.ui.live.help import Help, help_text
from pgsweep.ui.live.text import (
    KEYS,
    Trend,
    cost_line,
    missing_line,
    page_head,
    relation_table,
)

INTERVALS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""What `+` and `-` go through, in seconds."""

_TREND_LENGTH: Final = 120
_TREND_SECONDS: Final = 0.95
_MISSING_SHOWN: Final = 2


def _take_any_byte() -> None:
    """Let Textual read a byte that is not UTF-8 as U+FFFD: it would end the thread that reads the keys."""
    from textual.drivers import linux_driver

    def decoder(encoding: str) -> Callable[[], codecs.IncrementalDecoder]:
        return functools.partial(codecs.getincrementaldecoder(encoding), errors="replace")

    setattr(linux_driver, "getincrementaldecoder", decoder)  # noqa: B010 - not among what it exports


class CacheSample(Protocol):
    """One sample, which gives any relations in any order."""

    def sample(self, view: TopView) -> TopSample:
        """Return the relations wanted, with all that is not about relations."""


class Control(Protocol):
    """Takes the samples."""

    def start(self) -> None:
        """Begin."""

    def set_interval(self, seconds: float) -> None:
        """Set the time between samples."""

    def pause(self, paused: bool) -> None:
        """Pause taking samples, or resume."""

    def stop(self) -> None:
        """End."""


Show = Callable[[CacheSample], None]
Fail = Callable[[PgsweepError, float], None]
Break = Callable[[Exception], None]


class TopApp(App[None]):
    """The screen.

    Args:
        control_of: makes the control, given what to call: with a look, with a look that failed and will be
            tried again, and with an error that ends the screen.
        interval_seconds: from one look to the next, at first.
        view: the order at first.
        unicode: whether the terminal shows more than ASCII.
        server: where it is, in words, for the bar.
    """

    CSS = """
    Screen { background: ansi_default; color: ansi_default; layout: vertical; }
    #page { height: 1fr; width: 100%; background: ansi_default; color: ansi_default; }
    Input { height: 1; border: none; padding: 0; display: none; background: ansi_default;
             color: ansi_default; }
    Input:focus { border: none; }
    Help { background: ansi_default; }
    Help VerticalScroll { background: ansi_default; color: ansi_default; }
    """
    TITLE = "pgsweep top"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q,ctrl+c,ctrl+q", "leave", "Quit", priority=False),
        Binding("question_mark,h,f1", "help", "Help"),
        Binding("space", "pause", "Pause"),
        Binding("plus", "slower", "Slower"),
        Binding("minus", "faster", "Faster"),
        # Before anything else, so that keys pressed right behind them go where they are meant for.
        Binding("slash", "filter", "Filter", priority=True),
        Binding("enter", "keep_filter", priority=True),
        Binding("escape", "clear_filter", "All", priority=True),
        Binding("r", "reverse", "Reverse"),
        Binding("s", "fold", "System catalogs"),
        Binding("up", "move(-1)"),
        Binding("down", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home", "move(-1000000000)"),
        *(Binding(key, f"sort('{sort}')", word) for sort, (key, word) in KEYS.items()),
    ]

    class Taken(Message):
        """A look was taken."""

        def __init__(self, caches: CacheSample) -> None:
            super().__init__()
            self.caches = caches

    class Failed(Message):
        """A look failed."""

        def __init__(self, error: PgsweepError, retry_seconds: float) -> None:
            super().__init__()
            self.error = error
            self.retry_at = time.monotonic() + retry_seconds

    class Broken(Message):
        """The control has ended with an unexpected error."""

        def __init__(self, error: Exception) -> None:
            super().__init__()
            self.error = error

    def __init__(
        self,
        control_of: Callable[[Show, Fail, Break], Control],
        *,
        interval_seconds: float = 1.0,
        view: TopView | None = None,
        unicode: bool = True,
        server: str = "",
    ) -> None:
        super().__init__(ansi_color=True)
        self._server = server
        self._control = control_of(self._take, self._tell, self._break)
        self._interval_seconds = interval_seconds
        view = view or TopView()
        self._order, self._turned, self._wanted = view.sort, view.reverse, view.filter
        self._folded = view.fold
        self._unicode = unicode
        self._caches: CacheSample | None = None
        self._sample: TopSample | None = None
        self._trouble: TopApp.Failed | None = None
        self._paused = False
        self._signalled = False
        self._first_row = 0
        self._reads: deque[float] = deque(maxlen=_TREND_LENGTH)
        self._evictions: deque[float] = deque(maxlen=_TREND_LENGTH)
        self._trend_at = 0.0

    def show(self) -> None:
        """Show the screen until somebody ends it, then put the terminal back.

        Raises:
            KeyboardInterrupt: a signal ended it.
            Exception: whatever made it impossible to go on.
        """
        _take_any_byte()
        self.run(mouse=False)
        if self._signalled:
            raise KeyboardInterrupt
        if self._exception is not None:
            raise self._exception

    def _fatal_error(self) -> None:
        """End; Textual's own would print a traceback, with all local variables, in place of our sentence."""
        self._close_messages_no_wait()

    def compose(self) -> ComposeResult:
        """Make the page and the line of the filter."""
        yield Static("", id="page")
        yield Input(value=self._wanted, placeholder="part of a name; Enter keeps it, Escape shows all")

    def on_mount(self) -> None:
        """Begin to look."""
        self.theme = "ansi-dark"
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._end_by_signal)
        self._control.start()
        self.set_interval(0.5, self._count_down)

    def on_unmount(self) -> None:
        """Look no more."""
        self._control.stop()

    def _end_by_signal(self) -> None:
        """End as by a key, so that the terminal is put back."""
        self._signalled = True
        self.exit()

    def _take(self, caches: CacheSample) -> None:
        """Pass a look on, from the thread that took it."""
        with contextlib.suppress(RuntimeError):
            self.post_message(self.Taken(caches))

    def _tell(self, error: PgsweepError, retry_seconds: float) -> None:
        with contextlib.suppress(RuntimeError):
            self.post_message(self.Failed(error, retry_seconds))

    def _break(self, error: Exception) -> None:
        with contextlib.suppress(RuntimeError):
            self.post_message(self.Broken(error))

    def on_top_app_broken(self, message: Broken) -> None:
        """End with an unexpected error.

        Raises:
            Exception: that.
        """
        raise message.error

    def on_top_app_taken(self, message: Taken) -> None:
        """Show a look."""
        self._caches, self._trouble = message.caches, None
        self._draw()

    def on_top_app_failed(self, message: Failed) -> None:
        """Show the error over the last page."""
        self._trouble = message
        self._draw()

    def on_resize(self) -> None:
        """Draw the page at its new size."""
        self._draw()

    def _count_down(self) -> None:
        if self._trouble is not None:
            self._draw()

    # Keys

    def action_leave(self) -> None:
        """End."""
        self.exit()

    def action_help(self) -> None:
        """Explain keys and columns."""
        missing = [] if self._sample is None else self._sample.missing
        self.push_screen(Help(help_text(missing, self._terminal(self.size.width))))

    def action_pause(self) -> None:
        """Pause the screen, or resume it."""
        self._paused = not self._paused
        self._control.pause(self._paused)
        self._draw()

    def action_slower(self) -> None:
        """Look less often."""
        self._look_every(min((i for i in INTERVALS if i > self._interval_seconds), default=INTERVALS[-1]))

    def action_faster(self) -> None:
        """Look more often."""
        self._look_every(max((i for i in INTERVALS if i < self._interval_seconds), default=INTERVALS[0]))

    def _look_every(self, seconds: float) -> None:
        self._interval_seconds = seconds
        self._control.set_interval(seconds)
        self._draw()

    def action_sort(self, sort: str) -> None:
        """Order the relations; the same key again turns the order round."""
        self._turned = sort == self._order and not self._turned
        self._order, self._first_row = sort, 0
        self._draw()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self._turned = not self._turned
        self._draw()

    def action_fold(self) -> None:
        """Show all system catalogs as one row, or each by itself again."""
        self._folded = not self._folded
        self._first_row = 0
        self._draw()

    def action_move(self, rows: int) -> None:
        """Scroll the table."""
        self._first_row = max(0, self._first_row + rows)
        self._draw()

    def action_page(self, pages: int) -> None:
        """Scroll the table by what is seen of it."""
        self.action_move(pages * max(1, self.size.height // 2))

    def action_filter(self) -> None:
        """Open the line of the filter."""
        line = self.query_one(Input)
        line.display = True
        self.set_focus(line)  # at once; `line.focus()` would be later
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:  # noqa: ARG002
        """Return whether a key means an action now: in the filter `/` is a letter, over the help any key."""
        if action not in ("filter", "keep_filter", "clear_filter"):
            return True
        if len(self.screen_stack) > 1:
            return False
        return action == "clear_filter" or (action == "filter") == (self.focused is None)

    def action_clear_filter(self) -> None:
        """Show all relations again."""
        self.query_one(Input).value = ""
        self._close_filter()

    def on_input_changed(self, message: Input.Changed) -> None:
        """Filter while it is written."""
        self._wanted, self._first_row = message.value, 0
        self._draw()

    def action_keep_filter(self) -> None:
        """Close the line of the filter; what it says stays."""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one(Input).display = False
        self.set_focus(None)
        self._draw()

    # The page

    def _terminal(self, width: int) -> Terminal:
        return Terminal(width=max(20, width), unicode=self._unicode, colour=True, interactive=True)

    def _draw(self) -> None:
        pages = self.screen_stack[0].query("#page") if self.screen_stack else None
        if not pages:
            return
        page = pages.first(Static)
        width, height = self.size.width, self.size.height - self._filter_height()
        page.update(Text("\n", no_wrap=True, overflow="crop").join(self._page(width, max(1, height))))

    def _filter_height(self) -> int:
        lines = self.screen_stack[0].query(Input)
        return int(bool(lines) and lines.first(Input).display)

    def _page(self, width: int, height: int) -> list[Text]:
        terminal = self._terminal(width)
        foot = [as_text(line) for line in legend(terminal, order=self._order, paused=self._paused)]
        if self._caches is None:
            waiting = "connecting" if self._trouble is None else self._trouble_text(self._trouble)
            middle = [as_text(cut([(waiting, ())], terminal))]
            return filled([self._bar(terminal)], middle, foot, height)
        head_lines = 6 if height >= 14 else 2 if height >= 8 else 0
        view = TopView(
            sort=self._order,
            reverse=self._turned,
            filter=self._wanted,
            limit=self._first_row + height,
            fold=self._folded,
        )
        sample = self._sample = self._caches.sample(view)
        self._first_row = min(self._first_row, max(0, sample.relations_found - 1))
        self._remember(sample)
        top = [self._bar(terminal)]
        trend = Trend(reads=self._reads, evictions=self._evictions)
        top += [as_text(line) for line in page_head(sample, terminal, trend)[:head_lines]]
        foot = [*(as_text(cut(line, terminal)) for line in self._notices(sample)), *foot]
        if height < 8:
            foot = foot[-1:]
        wanted = self._first_row + max(0, height - len(top) - len(foot) - 1)
        seen = msgspec.structs.replace(sample, relations=sample.relations[self._first_row : wanted])
        table = relation_table(seen, terminal, sort=self._order, reverse=self._turned, wanted=self._wanted)
        header = as_text(table[0])
        header.stylize("reverse")
        header.pad_right(max(0, width - header.cell_len))
        header.stylize("reverse")
        return filled(top, [header, *(as_text(line) for line in table[1:])], foot, height)

    def _remember(self, sample: TopSample) -> None:
        now = time.monotonic()
        if sample.rates is None or self._paused or now - self._trend_at < _TREND_SECONDS:
            return
        self._trend_at = now
        self._reads.append(sample.rates.reads_per_second or 0.0)
        self._evictions.append(sample.rates.evictions_per_second or 0.0)

    def _bar(self, terminal: Terminal) -> Text:
        states = ["LOST"] if self._trouble is not None else []
        states += ["PAUSED"] if self._paused else []
        states += [f"filter {shown(self._wanted)}"] if self._wanted else []
        return title_bar(self._sample, self._interval_seconds, states, terminal, server=self._server)

    def _notices(self, sample: TopSample) -> list[Line]:
        lines: list[Line] = []
        for index in range(min(_MISSING_SHOWN, len(sample.missing))):
            more = len(sample.missing) - _MISSING_SHOWN if index == _MISSING_SHOWN - 1 else 0
            text = missing_line(sample, index)
            lines.append([(f"{more} more (?)  {text}" if more > 0 else text, ("yellow",))])
        if self._trouble is not None:
            lines.append([(self._trouble_text(self._trouble), ("red", "bold"))])
        else:
            lines.append([(cost_line(sample, self._interval_seconds), ("dim",))])
        return lines

    def _trouble_text(self, trouble: Failed) -> str:
        left = max(0.0, trouble.retry_at - time.monotonic())
        again = f"trying again in {left:.0f} s" if left >= 0.5 else "trying again"
        return f"{again}: {shown(trouble.error.message)}"
