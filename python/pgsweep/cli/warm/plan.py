"""`pgsweep warm plan`: what would be read, in which order and why."""

from __future__ import annotations

from typing import Any

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Bytes, Count
from pgsweep.cli.warm.options import options_of, warm_options


@subcommand(server="database")
@warm_options
@click.option(
    "--assume-rate", type=Bytes(), help="Estimate the time from this many bytes a second, and read no sample."
)
@click.option(
    "--top",
    type=Count(min=1),
    help="Only the first N relations.  [default: 30 in the text on a terminal, else all]",
)
def command(
    run: Run,
    /,
    *,
    assume_rate: int | None,
    top: int | None,
    **given: Any,
) -> None:
    r"""Show what `pgsweep warm run` would read: in which order and why, how many bytes, how long.

    The hottest come first, by the accesses per block that statistics have counted. Then come those that are
    less than half in use according to statistics, and last what was never read. Without statistics the
    smallest come first. With --heat, the contents of the file come before all else, by the saved usage per
    block. The plan never holds more than the cache: what does not fit is listed.

    To estimate the time, some of the blocks are read, 64 MB at most, bypassing shared_buffers; they may
    stay in the page cache.

    \b
    Examples:
      pgsweep warm plan shop
      pgsweep warm plan shop --top 10
      pgsweep warm plan shop --relations orders --into both
      pgsweep warm plan shop --heat shop.heat
      pgsweep warm plan shop --budget 4GB --assume-rate 500MB --json | jq .expected_seconds
    """
    options = options_of(given)
    import msgspec

    from pgsweep.warm.run.warming import plan

    result = run.target.use(lambda conninfo: plan(conninfo, options, assumed_bytes_per_second=assume_rate))
    if top is not None:
        found = len(result.relations)
        result = msgspec.structs.replace(result, relations=result.relations[:top], relations_found=found)
    run.show(result)
