"""`pgsweep memory kernel`: the kernel's settings that matter to a database host."""

from __future__ import annotations

from pathlib import Path

import click

from pgsweep.cli.common import HELP_NAMES, common_options, settings_of
from pgsweep.cli.connection import Target, connection_options
from pgsweep.cli.output import Output, output_options


@click.command(context_settings={"help_option_names": HELP_NAMES})
@connection_options
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
    no_password: bool,
    ask_password: bool,
    **names: str | None,
) -> None:
    r"""Show the kernel's settings that matter to a database host, and what we would set.

    Each has its present value, a recommendation, the reason, who says so, and how sure that is: writing back
    of dirty pages, overcommit, swapping, transparent huge pages, NUMA, the postmaster's OOM score,
    read-ahead. Nothing is set. Without a connection this host's settings are shown all the same.

    \b
    Examples:
      pgsweep memory kernel
      pgsweep memory kernel -h localhost -U postgres --json
    """
    settings = settings_of(ctx)
    target = Target(no_password=no_password, ask_password=ask_password, **names)
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out)
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.kernel import examine

    output.write(with_provenance(target.use(examine), settings.arguments))
