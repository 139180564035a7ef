"""`pgsweep warm restore`: bring saved heat back."""

from __future__ import annotations

from typing import Any

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import (
    Bytes,
    Count,
    Duration,
    pool_source_option,
)
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.warm.file import heat_file
from pgsweep.cli.warm.options import top_option
from pgsweep.cli.warm.run import WarmProgress
from pgsweep.errors import INTERRUPTED, ConnectionFailed, UsageError


@subcommand(server="database", prepared=False)
@click.argument("file", metavar="FILE")
@click.option(
    "--into",
    type=click.Choice(["pool", "page-cache", "both"]),
    default="both",
    help="Which cache to fill; the page cache with what was in it when FILE was saved.",
)
@click.option(
    "--heat/--no-heat",
    default=True,
    help="Restore usage counts: blocks whose count was above 1 are accessed until they reach it again.",
)
@click.option(
    "--budget",
    "budget_bytes",
    type=Bytes(),
    help="Use no more of the pool than this.  [default: what it holds]",
)
@click.option(
    "-j",
    "--connections",
    type=Count(1, 64),
    default=2,
    help="Sessions that read at once; blocks are requested from the disk before they are read, so few "
    "suffice.",
)
@click.option(
    "--rate",
    "rate_bytes_per_second",
    type=Bytes(),
    help="Read and touch no more than this each second.",
)
@click.option(
    "--max-latency",
    "max_latency_seconds",
    type=Duration(),
    help="Pause while reading one block takes longer than this.",
)
@click.option("--wait", type=Duration(), help="Wait this long for a server that is still starting.")
@click.option(
    "--next-start",
    type=Duration(),
    help="Wait this long for the next start of the server: run the command before the restart.",
)
@pool_source_option
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be read, and how; read nothing.")
@top_option
def command(
    run: Run,
    /,
    *,
    file: str,
    wait: float | None,
    next_start: float | None,
    dry_run: bool,
    top: int,
    **wanted: Any,
) -> int:
    r"""Bring back what FILE holds: the hottest blocks of all databases first, with their usage counts.

    On the server that FILE comes from, or on its physical standby, these are the same blocks. Elsewhere
    (after pg_upgrade, on a logical replica, on a restored dump) relations are found by name, TOAST by its
    table; one that was rewritten gets as large a share of its blocks as was resident. What could not be
    matched is listed.

    Loading the program and FILE takes a second in which a restarted server is cold. With --next-start that is
    done before the restart: a server that was started after this command is the next one.

    It never reads more than the pool holds: into a smaller pool the coldest blocks are not restored. What is
    resident already is not read again, so the same command resumes a restore that was cut short. It needs
    SELECT on the relations and the extension pg_prewarm in each database, but no superuser and no preload
    library; at the end it measures what is resident.

    \b
    Examples:
      pgsweep warm restore shop.heat shop
      pgsweep warm restore shop.heat -h standby1 -U warmer shop --rate 200MB
      pgsweep warm restore shop.heat --wait 60s --into pool
      pgsweep warm restore shop.heat shop --next-start 10min
      pgsweep warm restore shop.heat shop --dry-run
    """
    from pgsweep.cli.progress import ConsoleProgress
    from pgsweep.host.machine import process_began
    from pgsweep.warm.heat import restore as feature
    from pgsweep.warm.heat.file import read_heat
    from pgsweep.warm.heat.restore_plan import RestoreOptions

    if wait is not None and next_start is not None:
        raise UsageError("--wait and --next-start contradict each other", hint="leave one of them out")
    settings = run.settings
    run.output_options["rows"] = top
    path = heat_file(run, file)
    target = run.target
    saved = read_heat(path)
    options = RestoreOptions(
        wait_seconds=next_start or wait or 0.0,
        started_after=None if next_start is None else process_began(),
        **wanted,
    )
    if dry_run:
        run.show(target.use(lambda conninfo: feature.dry_run(conninfo, path, saved, options)))
        settings.say("dry run: nothing was read")
        return 0
    with (
        stoppable(settings, "ending after the blocks that are under way") as stop,
        ConsoleProgress(settings) as shown,
    ):
        shown.stage("restoring" if next_start is None else "waiting, then restoring")
        try:
            result = target.use(
                lambda conninfo: feature.restore(
                    conninfo, path, saved, options, stop=stop, listener=WarmProgress(shown)
                )
            )
        except ConnectionFailed:
            if not stop.is_set():
                raise
            settings.say("ended while it waited for the server")
            return INTERRUPTED
    run.show(result)
    if result.stopped:
        settings.say("ended early; the same command reads what is missing")
        return INTERRUPTED
    return 0
