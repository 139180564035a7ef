"""`pgsweep cache`: who is in which cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from pgsweep.cli.common import HELP_NAMES, common_options, pool_source_option
from pgsweep.cli.connection import Target, connection_options
from pgsweep.cli.observing import observing
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.settings import Settings
from pgsweep.errors import UsageError

if TYPE_CHECKING:
    from pgsweep.records.cache import CacheResult

_BY = ("relation", "table", "index", "schema", "partition-root", "database")
_MAP_CELLS = 512


@click.command(context_settings={"help_option_names": HELP_NAMES})
@connection_options
@click.option(
    "--by",
    type=click.Choice(_BY),
    default="relation",
    show_default=True,
    help="What a row is. table and partition-root take indexes and TOAST together with their table.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the N rows with most in the pool, and one for all system catalogs.  [default: 20 in the text, "
    "all in JSON, CSV and HTML]",
)
@click.option("--all", "everything", is_flag=True, help="All rows in the text too.")
@click.option(
    "--this-database", is_flag=True, help="Only relations of DBNAME.  [default: all that may be entered]"
)
@click.option(
    "--map",
    "map_of",
    metavar="RELATION",
    help="Draw where the blocks of a relation of DBNAME lie, written as in SQL.",
)
@pool_source_option
@output_options
@common_options
@observing
def command(
    settings: Settings,
    target: Target,
    output: Output,
    /,
    *,
    by: str,
    top: int | None,
    everything: bool,
    this_database: bool,
    map_of: str | None,
    source: Literal["auto", "peek", "sql"],
) -> None:
    r"""Show what lies in shared_buffers, in the page cache, in both, in neither.

    One row a relation: its size, what of it lies in the buffer pool and in the operating system's page cache,
    what is held twice, what would come from disk; how its buffers spread over usage_count 0 to 5; what is
    dirty. The page cache is seen on the server's host only, as the server's user or root; elsewhere the rest
    is shown. Nothing is changed, and nothing is read into any cache.

    \b
    Examples:
      pgsweep cache shop
      sudo -u postgres pgsweep cache shop --by table --top 20
      pgsweep cache -h db1 -U monitor shop --json | jq .pool
      pgsweep cache shop --map orders -o orders.html
    """
    if everything and top is not None:
        raise UsageError("--all and --top contradict each other", hint="leave one of them out")
    import msgspec

    from pgsweep.cache.inspect import look
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.residency.access import opened

    def looked(conninfo: str) -> CacheResult:
        with opened(conninfo, source) as access:
            if access.pool_source == "sql":
                settings.say(access.cost_note())
            return look(
                access,
                by=by,
                every_database=not this_database,
                top=top,
                map_of=map_of,
                map_cells=_MAP_CELLS,
            )

    result = target.use(looked)
    if everything:
        result = msgspec.structs.replace(result, top=len(result.relations))
    output.write(with_provenance(result, settings.arguments, server=target.server))
