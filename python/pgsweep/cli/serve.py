"""`pgsweep serve`: pages in a browser, a history, and metrics, of one server or many."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Duration, FileName
from pgsweep.cli.connection import Target, place_flags
from pgsweep.cli.output import check_writable, write_stdout
from pgsweep.cli.settings import Settings
from pgsweep.errors import LacksPackage, UsageError
from pgsweep.ui.kit.numbers import seconds

if TYPE_CHECKING:
    from pgsweep.serve.config import ServeConfig


@subcommand(output=False)
@click.argument("targets", metavar="[DSN]...", nargs=-1)
@click.option(
    "--config",
    "config_file",
    type=FileName(needed="file", dir_okay=False),
    help="serve.toml: servers with names, limits, queries of your own as metrics.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address at which pages are served; port 0 takes a free port. An address that other machines can "
    "reach needs a token.  [default: 127.0.0.1:8432]",
)
@click.option(
    "--history",
    metavar="DIR|DSN",
    help="Where the history is kept: a folder, which also holds the evidence, or a PostgreSQL database "
    "(postgresql://..., service=NAME).  [default: ~/.local/state/pgsweep/serve]",
)
@click.option(
    "--token-file",
    type=FileName(needed="file", dir_okay=False),
    help="A file with a secret that browsers and Prometheus must show.",
)
@click.option(
    "--base-path",
    metavar="PATH",
    help="The path below which a proxy shows the pages, such as /pgsweep.",
)
@click.option(
    "--tls-cert",
    type=FileName(needed="file", dir_okay=False),
    help="Serve by https: the certificate with its chain, PEM. Read when it starts.",
)
@click.option(
    "--tls-key",
    type=FileName(needed="file", dir_okay=False),
    help="The certificate's key, PEM.",
)
@click.option(
    "--interval",
    "interval_seconds",
    type=Duration(),
    help="Time from one sample to the next, 1s at least; longer where samples by SQL would cost more than 4% "
    "of one backend.  [default: 10s]",
)
@click.option(
    "--source",
    type=click.Choice(["auto", "peek", "sql"]),
    help="How pools are read. peek: from the server's memory, at no cost to the server; on its host only, as "
    "its user or root. sql: by pg_buffercache; works on any server.  [default: auto]",
)
@click.option(
    "--demo",
    is_flag=True,
    help="Serve a private server under a load, which is removed at the end: nothing of yours is needed.",
)
@click.option("--grafana", is_flag=True, help="Print a dashboard for Grafana, and end.")
@click.option("--alerts", is_flag=True, help="Print alerting rules for Prometheus, and end.")
@click.option(
    "--export",
    type=FileName(dir_okay=False),
    metavar="FILE.parquet",
    help="Write the history as Parquet files, and end: FILE holds the samples, files beside it consumers "
    "and curves.",
)
@place_flags
def command(
    run: Run,
    /,
    *,
    targets: tuple[str, ...],
    config_file: Path | None,
    history: str | None,
    demo: bool,
    grafana: bool,
    alerts: bool,
    export: Path | None,
    **given: Any,
) -> None:
    r"""Serve live pages, a history and metrics of one server or many.

    For each server: the predicted miss ratio at other sizes of shared_buffers, from the last 15 minutes, hour
    and day; reads by what served them; the host's memory; relations in both caches; usage counts, clock
    passes and evictions. /metrics is for Prometheus. A DSN is the name of a database, a connection string or
    a URI, as for psql; -h, -p and -U hold for each of them. Without one, -d or libpq's environment names the
    server. Servers may be down when it starts.

    The servers are only read. On a server's host, as its user or root, looking costs it nothing but a few
    short statements; by SQL, samples and evidence take at most 6.5% of one backend's time. Statements and
    sessions take 1% at most in addition, and each metric of your own 1%.

    \b
    Examples:
      pgsweep serve --demo
      pgsweep serve shop
      pgsweep serve -h db1 -U monitor shop billing
      pgsweep serve service=shop service=billing --history /var/lib/pgsweep
      pgsweep serve service=shop --history postgresql://watcher@db9/watching
      pgsweep serve --config /etc/pgsweep/serve.toml --listen 0.0.0.0:8432 --token-file /etc/pgsweep/token
      pgsweep serve --alerts > pgsweep.rules.yml
    """
    ctx, settings = run.ctx, run.settings
    names = {name: given.pop(name) for name in ("host", "port", "username", "dbname")}
    web = {name: given.pop(name) for name in ("base_path", "tls_cert", "tls_key")}
    if sum(map(bool, (grafana, alerts, export))) > 1:
        raise UsageError("--grafana, --alerts and --export cannot be used together", hint="give one of them")
    if grafana or alerts:
        from pgsweep.serve.rules import alert_rules, grafana_dashboard

        write_stdout(grafana_dashboard() if grafana else alert_rules())
        return
    from pgsweep.serve.config import WebOptions, default_history, load_config

    if demo:
        others: list[object] = [bool(targets), config_file, history, export, *_given(ctx, names)]
        _demo(settings, others, web=WebOptions(**web), **given)
        return
    config = load_config(
        _conninfos(ctx, targets, names, alone=config_file is None),
        file=config_file,
        history=history,
        web=WebOptions(**web),
        home=default_history(os.environ),
        **given,
    )
    if config.history_conninfo is not None:
        # Servers that are watched fail on their pages; a failure that ends it is one of the history's server.
        options = {"database": config.history_conninfo, **dict.fromkeys(names)}
        Target(no_password=False, ask_password=False, **options)
    if export is not None:
        if export.suffix != ".parquet":
            raise UsageError(f"the history is exported as Parquet: `{export}`", hint="name a file .parquet")
        check_writable(export)
        from pgsweep.serve.export import export_history
        from pgsweep.serve.history import store_of

        store = store_of(config.history, config.history_conninfo)
        for path, rows in export_history(store, export).items():
            from pgsweep.units import format_many

            settings.say(f"{format_many(rows, 'row')} in {path}")
        store.close()
        return
    _run(settings, config)


def _run(settings: Settings, config: ServeConfig) -> None:
    """Serve until a signal ends it."""
    _require_packages()
    from pgsweep.pg.session.conninfo import describe
    from pgsweep.serve.service import serve

    count = len(config.servers)
    place = config.history if config.history_conninfo is None else describe(config.history_conninfo)
    settings.say(
        f"{count} server{'s' if count != 1 else ''}, a sample every {seconds(config.interval_seconds)}, "
        f"history in {place}"
    )
    serve(config, say=lambda address: write_stdout(f"{address}\n"), warn=settings.say)


def _require_packages() -> None:
    """Fail where the extra is not installed.

    Raises:
        MissingAbility: it is not.
    """
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise LacksPackage(
            f"`pgsweep serve` needs the package {error.name}, which is not installed",
            cause="pages and metrics are an extra: other commands do without",
            hint="pip install 'pgsweep[serve]'",
        ) from error


def _demo(settings: Settings, others: list[object], **given: Any) -> None:
    """Serve a private server; what is given goes to `load_config`.

    Raises:
        UsageError: something was named that it does not take.
    """
    if any(others):
        raise UsageError(
            "--demo has a server and a history of its own", hint="pgsweep serve --demo --listen 127.0.0.1:0"
        )
    _require_packages()
    from pgsweep.cli.progress import ConsoleProgress
    from pgsweep.serve.config import load_config
    from pgsweep.serve.demo import demo_server

    with ExitStack() as stack:
        with ConsoleProgress(settings) as shown:
            conninfo, folder = stack.enter_context(demo_server(shown))
        _run(settings, load_config([conninfo], home=folder, **given))


def _given(ctx: click.Context, names: dict[str, str | None]) -> list[str]:
    """Return the names of psql's options that were given."""
    defaults = (click.core.ParameterSource.DEFAULT, click.core.ParameterSource.DEFAULT_MAP)
    return [name for name in names if ctx.get_parameter_source(name) not in defaults]


def _conninfos(
    ctx: click.Context, targets: tuple[str, ...], names: dict[str, str | None], *, alone: bool
) -> list[str]:
    """Return the servers of the command line.

    Args:
        targets: one DSN for each.
        names: psql's options.
        alone: there is no serve.toml, which would name servers too.
    """
    given = bool(_given(ctx, names))
    # What the configuration has for all commands adds no server to those of serve.toml.
    wanted: list[str | None] = [*targets] or ([None] if given or alone else [])
    return [
        Target(no_password=False, ask_password=False, database=target, **names).conninfo for target in wanted
    ]
