"""What one statement brings into each cache: `pgsweep footprint`.

A cache snapshot is taken before the first run and after each run. The statement runs as
EXPLAIN (ANALYZE, BUFFERS) in a session of its own, in a read-only transaction that is rolled back: a
statement that would write is refused by the server itself. Pages that the session needs for itself (system
catalogs while planning) are part of what a first run brings in, and are shown as such.

On a busy server other sessions move pages too; where the caches gained more than the server says the
statement read, a note says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from pgsweep.errors import UsageError
from pgsweep.host.datafiles import MAIN_FORK, Fork
from pgsweep.pg.catalog.backends import read_backends
from pgsweep.pg.explain import Explainer
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.refusals import explained
from pgsweep.records.footprint import FootprintChange, FootprintRelation, FootprintResult, FootprintRun
from pgsweep.records.rollup import is_catalog
from pgsweep.residency.access import Access, PoolSource, opened
from pgsweep.residency.names import Names, RelationFile, read_again, read_names
from pgsweep.residency.rows import KINDS
from pgsweep.residency.snapshot import CacheSnapshot, CacheSnapshotter, Change, compare, ranges
from pgsweep.units import format_count

_STRANGERS_SHARE = 0.02
_STRANGERS_BLOCKS = 16


def footprint(
    conninfo: str,
    statement: str,
    *,
    runs: int = 2,
    parameters: Sequence[str | None] = (),
    source: PoolSource = "auto",
    allow_writes: bool = False,
    timeout_seconds: float = 600.0,
    empty_caches: Callable[[], None] | None = None,
) -> FootprintResult:
    """Run a statement and return what it brought into each cache.

    Args:
        conninfo: as libpq understands it.
        statement: one SQL statement that EXPLAIN takes.
        runs: how often; the later ones show what a warm cache saves.
        parameters: the values of $1, $2 and so on, as text, or None for NULL; the server decides their types.
        source: how the buffer pool is read.
        allow_writes: run it in a transaction that may write; it is rolled back all the same, but what it
            wrote into tables and WAL until then stays as dead rows.
        timeout_seconds: the server ends a run that takes longer.
        empty_caches: called before all else, to make both caches cold; only for a private server.

    Raises:
        UsageError: EXPLAIN does not take the statement, or it would write.
        ConnectionFailed: the server cannot be reached, or has gone.
        MissingAbility: the buffer pool cannot be read.
    """
    if runs < 1:
        raise UsageError("a statement must run once at least", hint="--runs 2")
    if empty_caches is not None:
        empty_caches()
    with opened(conninfo, source) as access:
        names = read_names(access, [])
        taker = CacheSnapshotter(access)
        found: list[FootprintRun] = []
        plan: list[str] = []
        with connect(conninfo, inspection=False) as session, explained():
            explainer = Explainer(session, timeout_seconds=timeout_seconds, allow_writes=allow_writes)
            snapshots = [taker.take()]
            others = 0
            for number in range(runs):
                others = max(others, read_backends(access.connection, 0).active)
                report = explainer.run(statement, parameters)
                found.append(_figures(report))
                plan = plan if number else _plan_lines(report["Plan"])
                snapshots.append(taker.take())
            others = max(others, read_backends(access.connection, 0).active)
        relations = _relations(access, names, snapshots)
        return FootprintResult(
            server_version=access.server.version,
            database=access.server.database,
            statement=statement,
            cold=empty_caches is not None,
            pool_source=access.pool_source,
            sees_page_cache=snapshots[0].cached_pages is not None,
            shared_buffers_bytes=access.server.shared_buffers_blocks * access.server.block_size_bytes,
            runs=found,
            relations=relations,
            plan=plan,
            notes=[
                *_others_at_work(others),
                *_notes(found, relations, access.server.block_size_bytes, allow_writes=allow_writes),
            ],
            missing=access.missing,
        )


def _figures(report: dict[str, Any]) -> FootprintRun:
    plan, planning = report["Plan"], report.get("Planning", {})
    # 17 renamed it; without track_io_timing there is neither.
    read_ms = plan.get("Shared I/O Read Time", plan.get("I/O Read Time"))
    return FootprintRun(
        planning_seconds=report.get("Planning Time", 0.0) / 1000,
        execution_seconds=report.get("Execution Time", 0.0) / 1000,
        rows=round(plan.get("Actual Rows", 0) * plan.get("Actual Loops", 1)),
        shared_hit_blocks=plan.get("Shared Hit Blocks", 0),
        shared_read_blocks=plan.get("Shared Read Blocks", 0),
        shared_dirtied_blocks=plan.get("Shared Dirtied Blocks", 0),
        shared_written_blocks=plan.get("Shared Written Blocks", 0),
        temp_read_blocks=plan.get("Temp Read Blocks", 0),
        temp_written_blocks=plan.get("Temp Written Blocks", 0),
        planning_hit_blocks=planning.get("Shared Hit Blocks", 0),
        planning_read_blocks=planning.get("Shared Read Blocks", 0),
        shared_read_seconds=None if read_ms is None else read_ms / 1000,
    )


def _plan_lines(node: dict[str, Any], depth: int = 0) -> list[str]:
    """Return the plan as lines: what each node does, its rows, its blocks with those of its children."""
    what = node["Node Type"]
    if node.get("Parallel Aware"):
        what = f"Parallel {what}"
    if "Index Name" in node:
        what += f" using {node['Index Name']}"
    if "Relation Name" in node:
        what += f" on {node['Relation Name']}"
    loops = node.get("Actual Loops", 1)
    line = f"{'  ' * depth}{'-> ' if depth else ''}{what}  (rows {format_count(node.get('Actual Rows', 0))}"
    line += f", loops {format_count(loops)}" if loops != 1 else ""
    hit, read = node.get("Shared Hit Blocks", 0), node.get("Shared Read Blocks", 0)
    line += f"; blocks hit {format_count(hit)}, read {format_count(read)})"
    lines = [line]
    for child in node.get("Plans", []):
        lines += _plan_lines(child, depth + 1)
    return lines


def _relations(access: Access, names: Names, snapshots: list[CacheSnapshot]) -> list[FootprintRelation]:
    block_bytes = access.server.block_size_bytes
    changes = [compare(old, new) for old, new in itertools.pairwise(snapshots)]
    forks = {fork for change in changes for fork in change}
    if any(fork[:3] not in names.relations for fork in forks):
        read_again(access, names, access.server.database_oid)
    by_file: dict[RelationFile, list[Fork]] = {}
    for fork in sorted(forks):
        by_file.setdefault(fork[:3], []).append(fork)
    rows = []
    before = snapshots[0]
    sees = before.cached_pages is not None
    for file, members in by_file.items():
        named = names.relations.get(file)
        relation = None if named is None else named.relation
        every_fork = [(*file, fork) for fork in range(4)]
        rows.append(
            FootprintRelation(
                schema="" if relation is None else relation.schema,
                relation=f"(file {file[2]})" if relation is None else relation.name,
                kind="unknown" if relation is None else KINDS.get(relation.kind, relation.kind),
                size_bytes=sum(snapshots[-1].size_bytes.get(fork, 0) for fork in every_fork)
                if sees
                else None,
                shared_buffers_before_bytes=sum(len(before.pool.get(fork, ())) for fork in every_fork)
                * block_bytes,
                page_cache_before_bytes=_cached_bytes(before, every_fork, access),
                runs=[_change(change, members, block_bytes) for change in changes],
                table_schema="" if named is None else named.table[0],
                table="" if named is None else named.table[1],
            )
        )
    return sorted(
        rows,
        key=lambda row: (
            -sum(run.shared_buffers_in_bytes + (run.page_cache_in_bytes or 0) for run in row.runs),
            -sum(run.shared_buffers_out_bytes + (run.page_cache_out_bytes or 0) for run in row.runs),
            row.schema,
            row.relation,
        ),
    )


def _cached_bytes(snapshot: CacheSnapshot, forks: list[Fork], access: Access) -> int | None:
    if snapshot.cached_pages is None:
        return None
    pages = sum(int(snapshot.cached_pages[fork].sum()) for fork in forks if fork in snapshot.cached_pages)
    return pages * access.counted_bytes


def _change(changes: dict[Fork, Change], forks: list[Fork], block_bytes: int) -> FootprintChange:
    mine = [changes[fork] for fork in forks if fork in changes]
    main = next((changes[fork] for fork in forks if fork in changes and fork[3] == MAIN_FORK), None)
    seen = [change for change in changes.values() if change.page_cache_in_bytes is not None]
    unseen = bool(changes) and not seen

    def total(values: list[int | None]) -> int | None:
        return None if unseen else sum(value or 0 for value in values)

    page_cache_in = None if main is None or main.page_cache_in is None else ranges(main.page_cache_in)
    return FootprintChange(
        shared_buffers_in_bytes=sum(len(change.pool_in) for change in mine) * block_bytes,
        shared_buffers_out_bytes=sum(len(change.pool_out) for change in mine) * block_bytes,
        page_cache_in_bytes=total([change.page_cache_in_bytes for change in mine]),
        page_cache_out_bytes=total([change.page_cache_out_bytes for change in mine]),
        shared_buffers_in_blocks=[] if main is None else ranges(main.pool_in),
        page_cache_in_blocks=page_cache_in if page_cache_in is not None or unseen else [],
    )


def _others_at_work(active: int) -> list[str]:
    if not active:
        return []
    whose = "another session was" if active == 1 else f"{format_count(active)} other sessions were"
    return [f"{whose} at work meanwhile: the blocks that others brought into a cache count here too"]


def _notes(
    runs: list[FootprintRun], relations: list[FootprintRelation], block_bytes: int, *, allow_writes: bool
) -> list[str]:
    notes = []
    for number, run in enumerate(runs):
        # Parsing reads system catalogs too, which EXPLAIN does not count.
        own = [row for row in relations if not is_catalog(row)]
        gained = sum(row.runs[number].shared_buffers_in_bytes for row in own) // block_bytes
        read = run.shared_read_blocks + run.planning_read_blocks + run.shared_dirtied_blocks
        if gained > read * (1 + _STRANGERS_SHARE) + _STRANGERS_BLOCKS:
            notes.append(
                f"run {number + 1}: {format_count(gained)} blocks came into the pool, but the server read "
                f"only {format_count(read)} for "
                "the statement: others brought in pages meanwhile"
            )
    if allow_writes:
        notes.append("the transaction was rolled back; rows that it wrote remain as dead rows until a vacuum")
    return notes
