"""`pgsweep warm save`: write what lies in both caches to a file, once or every few minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Count, Duration, pool_source_option
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.output import check_writable
from pgsweep.cli.warm.file import heat_file
from pgsweep.commands import on_server
from pgsweep.errors import HeatError, PgsweepError
from pgsweep.plain import shell_word
from pgsweep.units import format_plain

if TYPE_CHECKING:
    import threading

    from pgsweep.cli.settings import Settings
    from pgsweep.records.heat import WarmSaveResult
    from pgsweep.residency.access import Access


@subcommand(server="database", output=False, prepared=False)
@click.argument("file", metavar="FILE")
@click.option("--every", type=Duration(), help="Save repeatedly, until Ctrl-C or SIGTERM.")
@click.option(
    "--keep",
    type=Count(min=1),
    default=1,
    help="Keep N files: FILE is the newest, FILE.1 the one before, and so on.",
)
@pool_source_option
@click.option("--json", "as_json", is_flag=True, help="Write what was saved as JSON to stdout.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what it would cost; read nothing, write nothing.")
def command(
    run: Run,
    /,
    *,
    file: str,
    every: float | None,
    keep: int,
    source: Literal["auto", "peek", "sql"],
    as_json: bool,
    dry_run: bool,
) -> None:
    r"""Write what lies in the caches to FILE: the blocks of all databases, with usage counts.

    On the server's host, as its user or root, it also saves what lies in the page cache. FILE is small (well
    under 2 bytes a block), is written whole or not at all, and can be read by any program that reads Parquet.
    `pgsweep warm restore` brings its contents back: after a restart, on a standby, on a new host, after
    pg_upgrade.

    With --every it goes on until it is stopped; while the server is away it tries again at the next time.
    After a restart of the server FILE is not replaced until the pool has filled again; without --every the
    exit code is then 1.

    \b
    Examples:
      pgsweep warm save shop.heat shop
      sudo pgsweep warm save /var/lib/pgsweep/shop.heat --every 5m --keep 12
      pgsweep warm save shop.heat -h db1 -U monitor shop --source sql
    """
    settings = run.settings
    run.output_options["as_json"] = as_json
    path = heat_file(run, file, writes=True)
    check_writable(path)

    def saved(access: Access) -> WarmSaveResult | None:
        from pgsweep.warm.heat.save import save

        if dry_run:
            settings.say(f"reading the pool by {access.pool_source}; would write {path}")
            settings.say("dry run: nothing was done")
            return None
        return save(access, path, keep=keep)

    def once() -> None:
        result = run.look(source, saved)
        if result is None:
            return
        if result.skipped is None or as_json:
            run.show(result)
        if result.skipped is not None:
            refusal = f"not saved: {result.skipped}"
            if every is None:
                raise HeatError(refusal, hint=on_server("pgsweep warm restore", shell_word(file)))
            settings.warn(refusal)

    if every is None or dry_run:
        once()
        return
    with stoppable(settings, "ending after what is being written") as stop:
        _again_and_again(settings, once, every, stop)


def _again_and_again(
    settings: Settings, once: Callable[[], None], every: float, stop: threading.Event
) -> None:
    """Save now and every `every` seconds; the first failure is fatal, a later one is reported."""
    once()
    due = time.monotonic() + every
    while not stop.wait(max(0.0, due - time.monotonic())):
        try:
            once()
        except PgsweepError as error:
            settings.warn(f"{error.message}; trying again in {format_plain(every)} s")
        due = max(due + every, time.monotonic())
