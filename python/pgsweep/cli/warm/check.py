"""`pgsweep warm check`: how much of a saved working set is resident now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import pool_source_option
from pgsweep.cli.warm.file import heat_file
from pgsweep.cli.warm.options import top_option
from pgsweep.errors import CONDITION_HOLDS

if TYPE_CHECKING:
    pass


@subcommand(server="database", prepared=False)
@click.argument("file", metavar="FILE")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="End with exit code 5 if the condition holds: 'worth<0.9'. Repeatable; one of them is enough.",
)
@pool_source_option
@top_option
def command(
    run: Run,
    /,
    *,
    file: str,
    fail_if: tuple[str, ...],
    source: Literal["auto", "peek", "sql"],
    top: int,
) -> int:
    r"""Show how much of the working set in FILE is resident now, in total and by relation.

    Use it before traffic is sent to a server: with --fail-if the exit code is 5 while the caches are too
    cold. A condition compares one of these values with a number from 0 to 1, such as 0.9, or 90%:

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
    from pgsweep.condition import parse_condition
    from pgsweep.ui.views.warm_check import held_conditions
    from pgsweep.warm.heat.check import CONDITION_NAMES, check
    from pgsweep.warm.heat.file import read_heat

    settings = run.settings
    run.output_options["rows"] = top
    path = heat_file(run, file)
    conditions = [parse_condition(text, CONDITION_NAMES) for text in fail_if]
    heat = read_heat(path)

    result = run.look(source, lambda access: check(access, path, heat, conditions))
    run.show(result)
    if run.output_options["as_json"] or run.output_options["as_csv"]:  # the text has them
        for text in held_conditions(result):
            settings.say(text)
    return CONDITION_HOLDS if result.conditions else 0
