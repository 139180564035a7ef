"""`pgsweep warm check`: how much of a saved working set is resident now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from pgsweep.cli.common import HELP_NAMES, common_options, pool_source_option, settings_of
from pgsweep.cli.connection import Target, connection_options
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.warm.file import heat_file
from pgsweep.cli.warm.options import top_option
from pgsweep.errors import CONDITION_HOLDS

if TYPE_CHECKING:
    from pgsweep.records.heat import WarmCheckResult


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument("file", metavar="FILE")
@connection_options
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="End with exit code 5 if the condition holds: 'worth<0.9'. Repeatable; one of them is enough.",
)
@pool_source_option
@top_option
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    file: str,
    fail_if: tuple[str, ...],
    source: Literal["auto", "peek", "sql"],
    top: int,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
    no_password: bool,
    ask_password: bool,
    **names: str | None,
) -> int:
    r"""Show how much of the working set in FILE is resident now, in total and by relation.

    Use it before traffic is sent to a server: with --fail-if the exit code is 5 while the caches are too
    cold. A condition compares one of these values with a number, such as 0.9 or 90%:

    \b
      worth          share of the saved blocks of usage count 2 and more that lie in the buffer pool;
                     in a steady load the others come and go
      resident       the same of all saved blocks
      resident_hot   the same, each block weighted by its usage count + 1
      either         in the buffer pool or in the page cache
      page_cache     share of what was in the page cache that is there now
      matched        share of what was saved that has a counterpart here
      usage_reached  share of the saved blocks that have reached their usage count again

    Nothing is changed, and nothing is read into any cache.

    \b
    Examples:
      pgsweep warm check shop.heat shop
      pgsweep warm check shop.heat -h db2 -U monitor shop --fail-if 'worth<0.9'
      until pgsweep warm check -q shop.heat shop --fail-if 'resident_hot<95%'; do sleep 5; done
    """
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.condition import parse_condition
    from pgsweep.residency.access import opened
    from pgsweep.ui.warm_check import held_conditions
    from pgsweep.warm.heat.check import CONDITION_NAMES, check
    from pgsweep.warm.heat.file import read_heat

    settings = settings_of(ctx)
    path = heat_file(settings, file, names["database"])
    target = Target(no_password=no_password, ask_password=ask_password, **names)
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out, rows=top)
    conditions = [parse_condition(text, CONDITION_NAMES) for text in fail_if]
    heat = read_heat(path)

    def checked(conninfo: str) -> WarmCheckResult:
        with opened(conninfo, source) as access:
            if access.pool_source == "sql":
                settings.say(access.cost_note())
            return check(access, path, heat, conditions)

    result = target.use(checked)
    output.write(with_provenance(result, settings.arguments, server=target.server))
    for text in held_conditions(result):
        settings.say(text)
    return CONDITION_HOLDS if result.conditions else 0
