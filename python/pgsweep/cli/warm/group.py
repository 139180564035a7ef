"""`pgsweep warm`: bring a cold server to heat."""

from __future__ import annotations

import click

from pgsweep.cli.branches import Branching
from pgsweep.cli.common import HELP_NAMES, common_options

_BRANCHES = {
    "plan": "warm.plan",
    "run": "warm.run",
    "save": "warm.save",
    "restore": "warm.restore",
    "check": "warm.check",
    "keep": "warm.keep",
}


@click.command(cls=Branching, branches=_BRANCHES, context_settings={"help_option_names": HELP_NAMES})
@common_options
@click.pass_context
def command(ctx: click.Context, /) -> None:
    r"""Bring a cold server to heat, and keep it there.

    After a restart both caches are empty, and every query waits for the disk. What it will read can be read
    before: by many sessions at once, in the order that pays most, as fast as the disk gives or as gently as
    you say. That needs the extension pg_prewarm and SELECT on the tables; no superuser, no preload library.

    \b
    Examples:
      pgsweep warm plan shop
      pgsweep warm run shop
      pgsweep warm run shop --relations orders,customers --rate 100MB
      pgsweep warm save shop.heat shop --every 5m --keep 12
      pgsweep warm restore shop.heat shop
      pgsweep warm check shop.heat shop --fail-if 'resident<0.9'
      pgsweep warm keep customers prices -d shop --indexes
    """
    click.echo(ctx.get_help())
