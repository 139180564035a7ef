"""`pgsweep warm run`: read what was planned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Duration, FileName
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.cli.settings import Settings
from pgsweep.cli.warm.options import options_of, warm_options
from pgsweep.errors import INTERRUPTED, UsageError
from pgsweep.plain import shell_word
from pgsweep.ui.kit.numbers import byte_rate, format_bytes
from pgsweep.ui.kit.numbers import seconds as seconds_text

if TYPE_CHECKING:
    from pgsweep.records.warm import WarmResult
    from pgsweep.warm.outcome import WorkState
    from pgsweep.warm.run.prepare import WarmOptions


@subcommand(server="database")
@warm_options
@click.option(
    "--max-latency",
    type=Duration(),
    help="Pause while the reading of one cold block takes longer than this: 50ms.",
)
@click.option(
    "--journal",
    type=FileName(dir_okay=False),
    help="Where progress is recorded; the file is kept only if the run is interrupted.  [default: a file for "
    "this server, database and selection in ~/.local/state/pgsweep]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue an interrupted run from its journal. After a server restart, the blocks that were read "
    "into its pool are read again.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show every statement with its bytes; read nothing.")
def command(
    run: Run,
    /,
    *,
    max_latency: float | None,
    journal: Path | None,
    resume: bool,
    dry_run: bool,
    **given: Any,
) -> int:
    r"""Read what `pgsweep warm plan` shows, by several sessions at once, and measure the result.

    Needs the extension pg_prewarm and SELECT on the tables, no superuser. A relation that cannot be read is
    listed and left out. While the server is away the work waits for it, and reads again what its pool lost.
    Ctrl-C ends it in good order; --resume goes on.

    At the end both caches are read, where that is possible: bytes requested, and bytes that are resident.

    \b
    Examples:
      pgsweep warm run shop
      pgsweep warm run shop --relations orders,customers --rate 100MB --max-latency 50ms
      sudo pgsweep warm run shop --into page-cache
      pgsweep warm run shop --dry-run
      pgsweep warm run shop --resume
    """
    settings, target = run.settings, run.target
    chosen = any(given[name] for name in ("relations", "schema", "every_database"))
    planned_anew = bool(given["budget"] or given["heat"] or (chosen and journal))
    options = options_of(given, max_latency)
    if resume and planned_anew:
        raise UsageError(
            "--resume reads what the journal says",
            hint="leave out --budget and --heat, and with --journal also --relations and --schema",
        )
    from pgsweep.warm.run import warming as warm
    from pgsweep.warm.run.journal_place import find_journal

    if dry_run:
        if resume:
            raise UsageError("--dry-run and --resume contradict each other", hint="leave one of them out")
        result = target.use(lambda conninfo: warm.dry_run(conninfo, options))
        run.show(result)
        settings.say("dry run: nothing was read")
        return 0
    if journal is not None and not os.access(journal if journal.exists() else journal.parent, os.W_OK):
        raise UsageError(f"`{journal}` may not be written", hint="name a file in a folder of yours")

    def warmed(conninfo: str) -> WarmResult:
        place = journal
        if place is None and resume:
            place = find_journal(conninfo, options.selection if chosen else None)
        elif place is None:
            place = _own_place(settings, conninfo, options)
        return warm.run(
            conninfo,
            options,
            stop=stop,
            listener=WarmProgress(shown),
            journal=place,
            resume=place if resume else None,
        )

    with (
        stoppable(settings, "ending after the blocks that are under way") as stop,
        ConsoleProgress(settings) as shown,
    ):
        shown.stage("warming")
        result = target.use(warmed)
    run.show(result)
    assert result.work is not None
    if result.work.stopped:
        kept = result.work.journal
        words = "--resume" + (f" --journal {shell_word(str(journal))}" if journal is not None else "")
        settings.say("interrupted" + (f"; kept: {kept}; go on with {words}" if kept else ""))
        return INTERRUPTED
    return 0


class WarmProgress:
    """Shows the progress of reading."""

    def __init__(self, shown: ConsoleProgress) -> None:
        self._shown = shown

    def note(self, text: str) -> None:
        """Write the line."""
        self._shown.note(text)

    def state(self, state: WorkState) -> None:
        """Move the bar."""
        words = [f"{format_bytes(state.done_bytes)} of {format_bytes(state.total_bytes)}"]
        if state.waiting:
            words.append("the server is away, waiting for it")
        elif state.paused:
            words.append("paused: the server answers late")
        elif state.rate_bytes_per_second > 0:
            words.append(byte_rate(state.rate_bytes_per_second))
            if state.left_seconds is not None and state.left_seconds >= 1:
                words.append(f"{seconds_text(state.left_seconds)} left")
        self._shown.portion(state.done_bytes / max(1, state.total_bytes), ", ".join(words))


def _own_place(settings: Settings, conninfo: str, options: WarmOptions) -> Path | None:
    """Return the default place of the journal; None, with a warning, if there is none."""
    from pgsweep.files import Untrusted
    from pgsweep.warm.run.journal import is_held
    from pgsweep.warm.run.journal_place import place_for

    place: Path | None = None
    why = "there is no folder for a journal ($XDG_STATE_HOME, or a home of yours)"
    try:
        place = place_for(conninfo, options.selection, options.into)
    except Untrusted as error:
        why = f"{error.message}, the folder of journals: {error.cause}"
    if place is not None and not is_held(place):
        return place
    if place is not None:
        why = "another run of the same is at work and keeps the journal"
    settings.warn(f"{why}, so this run could not be resumed; name one: --journal FILE")
    return None
