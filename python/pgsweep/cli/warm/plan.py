"""`pgsweep warm plan`: what would be read, in which order and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgsweep.cli.common import HELP_NAMES, Bytes, common_options, settings_of
from pgsweep.cli.connection import Target, connection_options
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.warm.options import WARM_NAMES, options_of, warm_options


@click.command(context_settings={"help_option_names": HELP_NAMES})
@connection_options
@warm_options
@click.option(
    "--assume-rate",
    type=Bytes(),
    metavar="SIZE",
    help="Estimate the time from this many bytes a second, and read no sample.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the first N relations.  [default: 30 in the text on a terminal, else all]",
)
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    assume_rate: int | None,
    top: int | None,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
    no_password: bool,
    ask_password: bool,
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
    settings = settings_of(ctx)
    options = options_of(**{name: given.pop(name) for name in WARM_NAMES})
    target = Target(no_password=no_password, ask_password=ask_password, **given)
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out)
    import msgspec

    from pgsweep.cli.provenance import with_provenance
    from pgsweep.warm.run.run import plan

    result = target.use(lambda conninfo: plan(conninfo, options, assumed_bytes_per_second=assume_rate))
    if top is not None:
        found = len(result.relations)
        result = msgspec.structs.replace(result, relations=result.relations[:top], relations_found=found)
    output.write(with_provenance(result, settings.arguments, server=target.server))
