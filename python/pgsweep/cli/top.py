"""`pgsweep top`: both caches, live."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Count, Duration, pool_source_option
from pgsweep.cli.output import write_stdout
from pgsweep.commands import on_server
from pgsweep.errors import UsageError
from pgsweep.ui.kit.numbers import seconds as seconds_text
from pgsweep.units import format_percent

if TYPE_CHECKING:
    from pgsweep.cache.top.live import Live
    from pgsweep.cli.settings import Settings
    from pgsweep.records.top import TopView

_SORTS = ("pool", "change", "hot", "dirty", "page-cache", "twice", "name")
_SHORTEST_SECONDS = 0.1
_ROWS_ONCE = 30
_ONCE_SECONDS = 5.0
"""A backend reports its statistics once a second at most (PGSTAT_MIN_INTERVAL, pgstat.c): over less than some
seconds a steady load seems to come and go."""


@subcommand(server="database", output=False)
@click.option(
    "--interval",
    "interval_seconds",
    type=Duration(),
    default="1s",
    help="Time from one sample to the next, 0.1s at least; keys + and - change it. By SQL it is stretched so "
    "that all statements together take no more than 4% of one backend.",
)
@click.option(
    "--sort",
    type=click.Choice(_SORTS),
    default="pool",
    help="Which relations come first; keys change it. change: fastest growing or shrinking, hot: most at "
    "usage_count 4 and 5, twice: most in both caches.",
)
@click.option(
    "--filter",
    metavar="TEXT",
    default="",
    show_default=False,
    help="Only relations whose name contains TEXT.",
)
@pool_source_option
@click.option(
    "--this-database",
    is_flag=True,
    help="Name only relations of DBNAME.  [default: all that the role may connect to]",
)
@click.option(
    "--once",
    is_flag=True,
    help="Take two samples, 5s apart or one --interval if it is given, print one page, and end.",
)
@click.option("--top", type=Count(min=1), help="With --once: how many relations.")
@click.option("--json", "as_json", is_flag=True, help="With --once: write JSON to stdout.")
def command(
    run: Run,
    /,
    *,
    interval_seconds: float,
    source: Literal["auto", "peek", "sql"],
    this_database: bool,
    once: bool,
    top: int | None,
    as_json: bool,
    **shown: Any,
) -> None:
    r"""Watch shared_buffers and the page cache live.

    Shows the pool and its usage_counts, what is held twice, hits and reads, evictions, what backends wait
    for, and the relations that have most of the pool, are hottest, or come and go fastest. Keys: q ends, ?
    explains all others. On the server's host, as its user or root, looking costs the server nothing but a few
    short statements a second, and --interval 0.1s is fine; by SQL each sample takes time of one backend. That
    time is shown, and it is limited. A server that is restarted is found again.

    \b
    Examples:
      sudo pgsweep top shop
      pgsweep top -h db1 -U monitor shop --interval 5s --sort change
      pgsweep top shop --once
      pgsweep top shop --once --json | jq .rates.hit_ratio
    """
    settings, target = run.settings, run.target
    once = once or as_json
    if interval_seconds < _SHORTEST_SECONDS:
        raise UsageError("the interval is too short", cause="0.1s is the least", hint="--interval 0.1s")
    if top is not None and not once:
        raise UsageError("--top goes with --once", hint="the live screen shows as many as there is room for")
    if not once and not _is_screen():
        raise UsageError(
            "`pgsweep top` needs a terminal",
            cause="stdin, stdout or stderr is not a terminal, or TERM is dumb",
            hint=f"one page as text: `{on_server('pgsweep top', '--once')}`; all relations: "
            f"`{on_server('pgsweep cache')}`",
        )
    from pgsweep.records.top import TopView

    if once and interval_seconds < _ONCE_SECONDS:
        # An interval of the configuration is the live screen's.
        if run.ctx.get_parameter_source("interval_seconds") is not click.core.ParameterSource.COMMANDLINE:
            interval_seconds = _ONCE_SECONDS
        else:
            settings.say(
                f"rates over {seconds_text(interval_seconds)} only: over less than "
                f"{seconds_text(_ONCE_SECONDS)} a steady load seems to come and go"
            )
    limit = top if top is not None or as_json else _ROWS_ONCE
    view = TopView(limit=limit if once else None, **shown)

    def watched(conninfo: str) -> None:
        opener = _opener(conninfo, source, every_database=not this_database)
        with ExitStack() as stack:
            live = stack.enter_context(opener(settings.say))
            if once:
                _print(live, interval_seconds, view, run, as_json=as_json)
            else:
                opened_first = _First(live, stack.pop_all(), opener)
                _watch(opened_first, interval_seconds, view, settings, server=target.server)

    target.use(watched)


def _is_screen() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)  # the screen is drawn on stderr
    return (
        all(stream is not None and stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"
    )


def _opener(
    conninfo: str, source: Literal["auto", "peek", "sql"], *, every_database: bool
) -> Callable[[Callable[[str], None] | None], AbstractContextManager[Live]]:
    """Return a function that opens the server and reports what looking at it costs."""
    from pgsweep.cache.top.live import SQL_SHARE, Live
    from pgsweep.residency.access import opened

    @contextmanager
    def reopen(say: Callable[[str], None] | None) -> Iterator[Live]:
        with opened(conninfo, source) as access:
            if say is not None:
                if access.pool_source == "sql":
                    say(f"{access.cost_note()}; no more than {format_percent(SQL_SHARE)} of its time")
                say("counters and states of backends: a few short statements a second at most")
            yield Live(access, every_database=every_database)

    return reopen


class _First:
    """Opens a server; the first time it is open already."""

    def __init__(
        self,
        live: Live,
        open_now: ExitStack,
        opener: Callable[[Callable[[str], None] | None], AbstractContextManager[Live]],
    ) -> None:
        self._open_now: tuple[Live, ExitStack] | None = (live, open_now)
        self._opener = opener

    @contextmanager
    def __call__(self) -> Iterator[Live]:
        if self._open_now is not None:
            (live, stack), self._open_now = self._open_now, None
            with stack:
                yield live
        else:
            with self._opener(None) as live:
                yield live


def _print(live: Live, interval_seconds: float, view: TopView, run: Run, *, as_json: bool) -> None:
    from pgsweep.cache.top.feed import take_twice
    from pgsweep.ui.live.text import once_text
    from pgsweep.ui.results import plain, to_json

    sample = run.made(take_twice(live, interval_seconds).sample(view))
    if as_json:
        write_stdout(to_json(sample))
    else:
        text = once_text(plain(sample), run.settings.terminal(), view)
        write_stdout(text)


def _watch(
    reopen: _First, interval_seconds: float, view: TopView, settings: Settings, *, server: str
) -> None:
    from pgsweep.cache.top.feed import Feed
    from pgsweep.ui.live.screen import TopApp

    terminal = settings.terminal()
    if not terminal.colour:
        os.environ["NO_COLOR"] = "1"  # Textual reads this variable

    feed_of = functools.partial(Feed, reopen, interval_seconds)
    TopApp(
        feed_of, interval_seconds=interval_seconds, view=view, unicode=terminal.unicode, server=server
    ).show()
