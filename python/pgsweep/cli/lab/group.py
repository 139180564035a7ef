"""`pgsweep lab`: published experiments run again, and grids of settings of your own."""

from __future__ import annotations

import click

from pgsweep.cli.branches import Branching
from pgsweep.cli.common import HELP_NAMES, common_options

_BRANCHES = {"list": "lab.list", "run": "lab.run", "compare": "lab.compare"}


@click.command(cls=Branching, branches=_BRANCHES, context_settings={"help_option_names": HELP_NAMES})
@common_options
@click.pass_context
def command(ctx: click.Context, /) -> None:
    r"""Run published experiments again, and grids of settings of your own.

    Everything runs on private servers (no TCP port, removed at the end). Every run is kept, one JSON line
    each; what was interrupted or killed goes on where it stopped.

    \b
    Examples:
      pgsweep lab list
      pgsweep lab run residency
      pgsweep lab run my-grid.toml -o my-grid.html
    """
    click.echo(ctx.get_help())
