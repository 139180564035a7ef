"""`pgsweep cache`: what lies in which cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from pgsweep.cli.command import Run, confirm, subcommand
from pgsweep.cli.common import Count, pool_source_option
from pgsweep.cli.completing import relation_names
from pgsweep.cli.output import write_stdout
from pgsweep.errors import UsageError
from pgsweep.plain import cleaned
from pgsweep.units import format_count, format_many

if TYPE_CHECKING:
    from pgsweep.records.cache import CacheResult
    from pgsweep.residency.access import Access

_BY = ("relation", "table", "index", "schema", "partition-root", "database")
_MAP_CELLS = 512


@subcommand(server="database")
@click.option(
    "--by",
    type=click.Choice(_BY),
    default="relation",
    help="What a row stands for. table and partition-root count indexes and TOAST with their table.",
)
@click.option(
    "--top",
    type=Count(min=1),
    help="Only the N rows with the most in the pool, and one row for all system catalogs.  [default: 20 in "
    "the text, all in JSON, CSV and HTML]",
)
@click.option("--all", "everything", is_flag=True, help="All rows in the text too.")
@click.option(
    "--this-database",
    is_flag=True,
    help="Only relations of DBNAME.  [default: all that the role may connect to]",
)
@click.option(
    "--map",
    "map_of",
    metavar="RELATION",
    shell_complete=relation_names,
    help="Draw where the blocks of a relation of DBNAME lie, written as in SQL.",
)
@click.option(
    "--evict",
    "evicted",
    metavar="RELATION",
    shell_complete=relation_names,
    help="First evict a relation of DBNAME from both caches; asks. Evicting from shared_buffers needs a "
    "superuser and PostgreSQL 17 or later; older versions evict from the page cache only.",
)
@click.option("-y", "--yes", is_flag=True, help="With --evict: do not ask.")
@click.option(
    "-n", "--dry-run", is_flag=True, help="With --evict: print the statement and system calls; do nothing."
)
@pool_source_option
def command(
    run: Run,
    /,
    *,
    everything: bool,
    this_database: bool,
    evicted: str | None,
    yes: bool,
    dry_run: bool,
    source: Literal["auto", "peek", "sql"],
    **shown: Any,
) -> None:
    r"""Show what lies in shared_buffers, in the page cache, in both, in neither.

    One row for each relation: its size, how much of it is in the buffer pool and in the operating system's
    page cache, what is held twice, what would come from disk; how its buffers are distributed over
    usage_count 0 to 5; what is dirty. The page cache is seen on the server's host only, as the server's user
    or root; elsewhere the rest is shown. Nothing is changed without --evict, and nothing is read into any
    cache.

    \b
    Examples:
      pgsweep cache shop
      sudo pgsweep cache shop --by table --top 20
      pgsweep cache -h db1 -U monitor shop --json | jq .pool
      pgsweep cache shop --map orders -o orders.html
      sudo pgsweep cache shop --evict orders
    """
    if everything and shown["top"] is not None:
        raise UsageError("--all and --top contradict each other", hint="leave one of them out")
    if dry_run:
        _dry_run(run, evicted)
        return
    if evicted is not None:
        confirm(
            f"Evict `{cleaned(evicted)}` from the caches of the server at {run.target.server}? Its next "
            "queries wait for the disk",
            yes=yes,
            what="this evicts a relation from the caches",
            hint="",
        )
    import msgspec

    from pgsweep.cache.inspect import look

    def looked(access: Access) -> CacheResult:
        if evicted is not None:
            run.settings.say(_evict(access, evicted))
        return look(access, every_database=not this_database, map_cells=_MAP_CELLS, **shown)

    result = run.look(source, looked)
    if everything:
        result = msgspec.structs.replace(result, top=len(result.relations))
    run.show(result)


def _dry_run(run: Run, relation: str | None) -> None:
    """Print how a relation would be taken out of the caches.

    Raises:
        UsageError: no relation is named.
    """
    from pgsweep.cache.evict import written_plan
    from pgsweep.residency.access import opened

    if relation is None:
        raise UsageError("--dry-run goes with --evict", hint="without --evict `cache` changes nothing")

    def plan(conninfo: str) -> list[str]:
        with opened(conninfo) as access:
            return written_plan(access, relation)

    write_stdout("".join(f"{line}\n" for line in run.target.use(plan)))
    run.settings.say("dry run: nothing was changed")


def _evict(access: Access, relation: str) -> str:
    """Take a relation out of both caches, and return what was done."""
    from pgsweep.cache.evict import evict_relation

    done = evict_relation(access, relation)
    if done.buffers is None:
        release = access.server.version_num // 10000
        text = (
            f"`{relation}`: its buffers stay in shared_buffers, as PostgreSQL {release} cannot evict them "
            "(17 and later can)"
        )
    else:
        text = f"evicted `{relation}`: {format_many(done.buffers, 'buffer')}"
    if done.pinned:
        text += f", {format_count(done.pinned)} stay because they are in use"
    if done.files is None:
        return f"{text}; the page cache cannot be reached from here"
    text += f"; the page cache was asked to drop {format_many(done.files, 'file')}"
    return text + (f", and refused for {format_count(done.refused)}" if done.refused else "")
