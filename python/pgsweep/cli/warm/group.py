"""`pgsweep warm`: warm the caches of a cold server."""

from __future__ import annotations

import click

from pgsweep.cli.branches import Branching
from pgsweep.cli.command import Run, subcommand

_BRANCHES = {
    "plan": "warm.plan",
    "run": "warm.run",
    "save": "warm.save",
    "restore": "warm.restore",
    "check": "warm.check",
    "keep": "warm.keep",
}


@subcommand(output=False, cls=Branching, branches=_BRANCHES)
def command(run: Run, /) -> None:
    r"""Warm the caches of a cold server, and keep relations resident.

    After a restart both caches are empty, and every query waits for the disk. The blocks that queries will
    need can be read beforehand: by many sessions at once, the most useful first, as fast as the disk allows
    or at a rate that you set. That needs the extension pg_prewarm and SELECT on the tables; no superuser, no
    preload library.

    \b
    Examples:
      pgsweep warm plan shop
      pgsweep warm run shop
      pgsweep warm run shop --relations orders,customers --rate 100MB
      pgsweep warm save shop.heat shop --every 5m --keep 12
      pgsweep warm restore shop.heat shop
      pgsweep warm check shop.heat shop --fail-if 'worth<0.9'
      pgsweep warm keep customers prices -d shop --indexes
    """
    click.echo(run.ctx.get_help())
