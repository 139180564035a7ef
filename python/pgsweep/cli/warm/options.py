"""What `pgsweep warm plan` and `pgsweep warm run` both take: what to warm, into which cache, how fast."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from pgsweep.cli.common import Bytes, Count, FileName, options, pool_source_option
from pgsweep.cli.completing import listed_relation_names, schema_names
from pgsweep.cli.warm.file import save_one
from pgsweep.errors import UsageError

if TYPE_CHECKING:
    from pgsweep.warm.run.prepare import WarmOptions


_CONNECTIONS = 3


class Names(click.ParamType[Any]):
    """Names of relations as SQL has them, separated by commas; commas within double quotes are theirs."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Return the names.

        Raises:
            UsageError: a name is empty.
        """
        if isinstance(value, list):
            return value
        names = [name.strip() for name in re.findall(r'(?:"(?:[^"]|"")*"|[^,"])+', str(value))]
        if not names or not all(names):
            raise UsageError(
                f"`{value}` names no relation", hint="write names as in SQL: --relations orders,sales.items"
            )
        return names


top_option = click.option(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Show only the N largest relations. Files, --json and --csv have all.",
)
"""How many of a heat file's relations are shown; it arrives as top."""


warm_options = options(
    click.option(
        "--relations",
        type=Names(),
        multiple=True,
        metavar="NAME,...",
        shell_complete=listed_relation_names,
        help="Only these, written as in SQL: a table with its indexes and TOAST, a partitioned one with "
        "all partitions. May be repeated.  [default: all of DBNAME]",
    ),
    click.option(
        "--schema",
        multiple=True,
        metavar="NAME",
        shell_complete=schema_names,
        help="Only this schema. May be repeated.",
    ),
    click.option("--every-database", is_flag=True, help="All databases that the role may connect to."),
    click.option(
        "--heat",
        type=FileName(needed="file", hint=save_one, dir_okay=False),
        help="Order by what `pgsweep warm save` wrote to FILE; what it does not hold comes after, by "
        "statistics.",
    ),
    click.option(
        "--into",
        type=click.Choice(["pool", "page-cache", "both"]),
        default="pool",
        help="Which cache to fill: shared_buffers, the page cache, or both: the hottest into "
        "shared_buffers, the rest into the page cache.",
    ),
    click.option(
        "--budget",
        type=Bytes(),
        help="Read no more than this.  [default: what the cache holds, less a reserve]",
    ),
    click.option(
        "--mode",
        type=click.Choice(["kernel", "read", "prefetch"]),
        help="How to warm the page cache. kernel: pgsweep reads the files itself, on the server's host. "
        "read, prefetch: pg_prewarm in that mode.  [default: kernel where possible, else read]",
    ),
    click.option(
        "--connections", type=Count(1, 64), default=_CONNECTIONS, help="Sessions that read at once."
    ),
    click.option("--rate", type=Bytes(), help="Read no faster than this a second: 100MB."),
    pool_source_option,
)
"""What to warm, and how; `options_of` makes them the feature's."""


def options_of(given: dict[str, Any], max_latency: float | None = None) -> WarmOptions:
    """Return the options of `warm_options`, by name, as the feature takes them.

    Raises:
        UsageError: they contradict each other.
        HeatError: the heat file cannot be read.
    """
    names = [name for part in given["relations"] for name in part]
    schemas, every_database, mode, heat = (
        given[name] for name in ("schema", "every_database", "mode", "heat")
    )
    if every_database and (names or schemas):
        raise UsageError("--every-database takes everything, names choose", hint="leave out one of them")
    if mode is not None and given["into"] == "pool":
        raise UsageError(
            f"--mode {mode} is for the page cache",
            cause="into shared_buffers there is one way only, pg_prewarm's mode buffer",
            hint="add --into page-cache, or leave out --mode",
        )
    from pgsweep.warm.heat.file import read_heat
    from pgsweep.warm.heat.saved import weigh
    from pgsweep.warm.run.gather import Selection
    from pgsweep.warm.run.prepare import WarmOptions

    return WarmOptions(
        heat=None if heat is None else weigh(heat, read_heat(heat)),
        selection=Selection(relations=names, schemas=schemas, every_database=every_database),
        into=given["into"],
        budget_bytes=given["budget"],
        mode=mode,
        connections=given["connections"],
        rate_bytes_per_second=given["rate"],
        max_latency_seconds=max_latency,
        source=given["source"],
    )
