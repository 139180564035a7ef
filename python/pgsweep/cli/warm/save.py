"""`pgsweep warm save`: write what lies in both caches to a file, once or every few minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

from pgsweep.cli.common import HELP_NAMES, Duration, common_options, pool_source_option, settings_of
from pgsweep.cli.connection import Target, connection_options
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.output import Output, check_writable
from pgsweep.cli.warm.file import heat_file
from pgsweep.errors import PgsweepError
from pgsweep.units import format_plain

if TYPE_CHECKING:
    import threading

    from pgsweep.cli.settings import Settings
    from pgsweep.records.heat import WarmSaveResult


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument("file", metavar="FILE")
@connection_options
@click.option("--every", type=Duration(), metavar="TIME", help="Save repeatedly, until Ctrl-C or SIGTERM.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Keep N files: FILE is the newest, FILE.1 the one before, and so on.",
)
@pool_source_option
@click.option("--json", "as_json", is_flag=True, help="Write what was saved as JSON to stdout.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what it would cost; read nothing, write nothing.")
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    file: str,
    every: float | None,
    keep: int,
    source: Literal["auto", "peek", "sql"],
    as_json: bool,
    dry_run: bool,
    no_password: bool,
    ask_password: bool,
    **names: str | None,
) -> None:
    r"""Write what lies in the caches to FILE: the blocks of all databases, with usage counts.

    On the server's host, as its user or root, it also saves what lies in the page cache. FILE is small (well
    under 2 bytes a block), is written whole or not at all, and can be read by any program that reads Parquet.
    `pgsweep warm restore` brings its contents back: after a restart, on a standby, on a new host, after
    pg_upgrade.

    With --every it goes on until it is stopped; while the server is away it tries again at the next time.
    After a restart of the server FILE is not replaced until the pool has filled again.

    \b
    Examples:
      pgsweep warm save shop.heat shop
      sudo pgsweep warm save /var/lib/pgsweep/shop.heat --every 5m --keep 12
      pgsweep warm save shop.heat -h db1 -U monitor shop --source sql
    """
    settings = settings_of(ctx)
    path = heat_file(settings, file, names["database"], writes=True)
    target = Target(no_password=no_password, ask_password=ask_password, **names)
    output = Output(settings, as_json=as_json)
    check_writable(path)

    def saved(conninfo: str) -> WarmSaveResult | None:
        from pgsweep.residency.access import opened
        from pgsweep.warm.heat.save import save

        with opened(conninfo, source) as access:
            if access.pool_source == "sql":
                settings.say(access.cost_note())
            if dry_run:
                settings.say(f"reading the pool by {access.pool_source}; would write {path}")
                settings.say("dry run: nothing was done")
                return None
            return save(access, path, keep=keep)

    def once() -> None:
        from pgsweep.cli.provenance import with_provenance

        result = target.use(saved)
        if result is not None:
            if result.skipped is not None:
                settings.warn(result.skipped)
            output.write(with_provenance(result, settings.arguments, server=target.server))

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
