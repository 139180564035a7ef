"""`pgsweep lab list`: the experiments, and which of them can run here."""

from __future__ import annotations

from pathlib import Path

import click

from pgsweep.cli.common import HELP_NAMES, common_options, settings_of
from pgsweep.cli.output import Output, output_options


@click.command(context_settings={"help_option_names": HELP_NAMES})
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context, /, *, as_json: bool, as_csv: bool, html: Path | None, out: tuple[Path, ...]
) -> None:
    r"""List the published experiments: what each asks, how long it takes, whether it can run here.

    What an experiment needs besides a private server (a memory cgroup, huge pages that are free) is listed
    with it. One that can run in part leaves out what it cannot measure, and says so.

    \b
    Examples:
      pgsweep lab list
      pgsweep lab list --json | jq '.experiments[] | select(.state == "runs") | .name'
    """
    settings = settings_of(ctx)
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out)
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.lab.catalog import list_experiments

    output.write(with_provenance(list_experiments(), settings.arguments))
