"""`pgsweep lab`: published experiments run again, and grids of settings of your own."""

from __future__ import annotations

import click

from pgsweep.cli.branches import Branching
from pgsweep.cli.command import Run, subcommand

_BRANCHES = {"list": "lab.list", "run": "lab.run", "compare": "lab.compare"}


@subcommand(output=False, cls=Branching, branches=_BRANCHES)
def command(run: Run, /) -> None:
    r"""Run published experiments again, and grids of settings of your own.

    Everything runs on private servers (no TCP port, removed at the end). Every run is kept, one JSON line
    each; what was interrupted or killed goes on where it stopped.

    \b
    Examples:
      pgsweep lab list
      pgsweep lab run residency
      pgsweep lab run my-grid.toml -o my-grid.html
    """
    click.echo(run.ctx.get_help())
