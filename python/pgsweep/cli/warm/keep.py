"""`pgsweep warm keep`: keep chosen relations resident against floods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Bytes, Duration, pool_source_option, require_no_connection
from pgsweep.cli.completing import relation_names
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.output import write_stdout
from pgsweep.errors import PgsweepError, UsageError

if TYPE_CHECKING:
    import threading

    from pgsweep.cli.settings import Settings
    from pgsweep.records.warm_keep import WarmKeepPlan, WarmKeepResult, WarmKeepSample
    from pgsweep.warm.keep.keep import KeepOptions


@subcommand(server="options")
@click.argument("relations", metavar="RELATION...", nargs=-1, required=True, shell_complete=relation_names)
@click.option("--indexes", is_flag=True, help="Keep the tables' indexes too.")
@click.option("--toast", is_flag=True, help="Keep the tables' TOAST relations too.")
@click.option(
    "--budget",
    "budget_bytes",
    type=Bytes(),
    help="Never keep more than this; of larger relations, the hottest blocks.  [default: a quarter of "
    "shared_buffers, into which all must fit]",
)
@click.option(
    "--rate",
    "rate_bytes",
    type=Bytes(),
    default="32MB",
    help="Read evicted blocks no faster than this a second.",
)
@click.option(
    "--interval",
    "interval_seconds",
    type=Duration(),
    help="Time from one round to the next.  [default: a quarter of a clock pass]",
)
@click.option("--for", "seconds", type=Duration(), help="End after this time.  [default: at Ctrl-C]")
@click.option(
    "--report",
    "report_seconds",
    type=Duration(),
    default="10s",
    help="Time from one line of progress to the next.",
)
@pool_source_option
@click.option("-n", "--dry-run", is_flag=True, help="Print the statements and the bytes; touch nothing.")
def command(
    run: Run,
    /,
    *,
    relations: tuple[str, ...],
    seconds: float | None,
    dry_run: bool,
    **wanted: Any,
) -> None:
    r"""Keep chosen relations in shared_buffers while others flood it, until Ctrl-C.

    The pool is read at short intervals. Blocks that the clock hand would evict before the next round are
    touched by pg_prewarm, and blocks that were evicted are read again, the hottest first. The effect ends
    with this process, however it ends. Two of these processes never keep the same relation.

    It has a cost: other relations lose the memory that is kept, each block read again evicts another, and the
    server counts each touch as a hit of that relation, which raises its hit ratio in pg_statio. The result
    shows how much of each there was.

    Needs pg_prewarm and SELECT on the tables; to read the pool, it needs the server's host (as its user or
    root), or pg_buffercache and pg_monitor. Names are written as in SQL; a partitioned table means its
    partitions.

    \b
    Examples:
      pgsweep warm keep customers prices -d shop --indexes
      pgsweep warm keep sales.orders -d shop --budget 2GB --for 8h
      pgsweep warm keep '"Odd Name"' -d shop --dry-run
      pgsweep warm keep customers -d shop --for 10min --json | jq .resident_share_mean
    """
    require_no_connection(*relations, what="a relation")
    settings, target, given = run.settings, run.target, run.output_options
    if dry_run and any(given[name] for name in ("as_csv", "html", "out")):
        raise UsageError(
            "--dry-run prints its plan, as text or with --json", hint="leave out --csv, --html, -o"
        )
    from pgsweep.warm.keep.keep import Keeper, KeepOptions

    options = KeepOptions(names=list(relations), **wanted)
    if dry_run:
        plan = target.use(lambda conninfo: Keeper(conninfo, options, note=settings.say).plan())
        _show_plan(run, plan)
        return
    with stoppable(settings, "ending") as stop:
        result = target.use(lambda conninfo: _keep(conninfo, options, seconds, stop, settings))
    run.show(result)
    if result.ended_by == "gone":
        raise PgsweepError(
            "no relation is left to keep",
            cause="all of them were dropped, or could no longer be read",
            hint="start again with relations that exist",
        )


def _keep(
    conninfo: str, options: KeepOptions, seconds: float | None, stop: threading.Event, settings: Settings
) -> WarmKeepResult:
    from pgsweep.ui.views.warm_keep import sample_line
    from pgsweep.warm.keep.keep import Keeper

    def report(sample: WarmKeepSample) -> None:
        settings.say(sample_line(sample))

    return Keeper(conninfo, options, report=report, note=settings.say).run(seconds=seconds, stop=stop)


def _show_plan(run: Run, plan: WarmKeepPlan) -> None:
    from pgsweep.ui.results import plain, to_json
    from pgsweep.ui.views.warm_keep import plan_text

    plan, as_json = run.made(plan), run.output_options["as_json"]
    write_stdout(to_json(plan) if as_json else plan_text(plain(plan), run.settings.terminal()))
    run.settings.say("dry run: the pool was looked at once, nothing was touched or read")
