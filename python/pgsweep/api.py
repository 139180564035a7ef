"""The functions of `import pgsweep` that take more than one step: open the server, read, close it.

Each takes a connection string as libpq understands it, and returns a record (`pgsweep.records`). Nothing is
printed. All of them raise what `pgsweep.errors` has: ConnectionFailed, MissingAbility, UsageError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pgsweep.cache import inspect
from pgsweep.cache.top.feed import take_twice
from pgsweep.cache.top.live import Live
from pgsweep.condition import parse_condition
from pgsweep.doctor import examine, examine_host
from pgsweep.errors import ConnectionFailed
from pgsweep.load import compare as load_practices
from pgsweep.load import loading
from pgsweep.load.options import LoadOptions
from pgsweep.memory import budget, processes
from pgsweep.memory.hugepages import inspect as hugepages
from pgsweep.progress import NullListener, Progress
from pgsweep.records.budget import BudgetResult
from pgsweep.records.cache import CacheResult
from pgsweep.records.doctor import DoctorResult
from pgsweep.records.heat import WarmCheckResult, WarmRestoreResult, WarmSaveResult
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.load import LoadCompareResult, LoadResult
from pgsweep.records.memory import MemoryResult
from pgsweep.records.top import TopSample, TopView
from pgsweep.records.warm import WarmResult
from pgsweep.records.warm_keep import WarmKeepResult, WarmKeepSample
from pgsweep.residency.access import PoolSource, opened
from pgsweep.warm.heat import check, restore, save
from pgsweep.warm.heat.file import read_heat
from pgsweep.warm.heat.restore_plan import RestoreOptions
from pgsweep.warm.keep.keep import Keeper, KeepOptions
from pgsweep.warm.run import warming as run
from pgsweep.warm.run.prepare import WarmOptions


def examine_server(conninfo: str) -> DoctorResult:
    """Return what can be done with a server from here, and how to get what cannot (`pgsweep doctor`).

    Where the server cannot be reached the result says why, and what this host allows.
    """
    try:
        return examine(conninfo)
    except ConnectionFailed as refused:
        return examine_host(conninfo, refused)


def inspect_cache(
    conninfo: str,
    *,
    by: str = "relation",
    source: PoolSource = "auto",
    every_database: bool = True,
    top: int | None = None,
    map_of: str | None = None,
) -> CacheResult:
    """Return what lies in shared_buffers and in the page cache (`pgsweep cache`).

    Args:
        conninfo: as libpq understands it.
        by: what a row is: relation, table, partitioned, schema, database, kind or tablespace.
        source: how the pool is read: `peek`, `sql`, or `auto`, which peeks where that is possible.
        every_database: relations of all databases that may be entered, not only of the session's.
        top: how many rows; None for all.
        map_of: a relation whose blocks are drawn.
    """
    with opened(conninfo, source) as access:
        return inspect.look(access, by=by, every_database=every_database, top=top, map_of=map_of)


def sample_load(
    conninfo: str,
    *,
    interval_seconds: float = 5.0,
    source: PoolSource = "auto",
    every_database: bool = True,
    view: TopView | None = None,
) -> TopSample:
    """Return both caches and the load on them over an interval (`pgsweep top --once`).

    Args:
        conninfo: as libpq understands it.
        interval_seconds: between the two cache snapshots; sessions send their counters once a second.
        source: how the pool is read.
        every_database: name relations of all databases that may be entered.
        view: which relations, and in which order; all by their share of the pool by default.
    """
    with opened(conninfo, source) as access:
        live = Live(access, every_database=every_database)
        return take_twice(live, interval_seconds).sample(view or TopView())


def inspect_memory(conninfo: str, *, top: int | None = None, queries: bool = False) -> MemoryResult:
    """Return what every process of the server costs the host (`pgsweep memory`).

    Args:
        conninfo: as libpq understands it; the server must run on this host.
        top: how many processes, the costliest; None for all.
        queries: with the text of each session's statement, which may hold secrets.
    """
    with processes.opened(conninfo) as server:
        return processes.look(server, top=top, queries=queries)


def memory_budget(conninfo: str, *, max_connections: int | None = None, plan_nodes: int = 2) -> BudgetResult:
    """Return whether the memory suffices at max_connections, and what is left (`pgsweep memory budget`).

    Args:
        conninfo: as libpq understands it; the server must run on this host.
        max_connections: instead of the server's own.
        plan_nodes: how many sorts and hashes of a query run at once, each with its work_mem.
    """
    with processes.opened(conninfo) as server:
        return budget.budget(server, max_connections=max_connections, plan_nodes=plan_nodes)


def huge_pages(
    conninfo: str,
    *,
    settings: Mapping[str, str] | None = None,
    page_bytes: int | None = None,
    connections: int | None = None,
) -> HugePagesResult:
    """Return how many huge pages the server needs, has, and saves (`pgsweep hugepages`).

    Args:
        conninfo: as libpq understands it.
        settings: to be asked about instead of the server's own, as in postgresql.conf.
        page_bytes: size of the pages; the server's or the kernel's default by default.
        connections: for how many to predict page tables; max_connections by default.
    """
    return hugepages.examine(conninfo, settings=settings, page_bytes=page_bytes, connections=connections)


def warm_plan(conninfo: str, options: WarmOptions | None = None) -> WarmResult:
    """Return what a warm-up would read, in which order and why (`pgsweep warm plan`)."""
    return run.plan(conninfo, options or WarmOptions())


def warm_run(
    conninfo: str,
    options: WarmOptions | None = None,
    *,
    stop: threading.Event | None = None,
    journal: Path | None = None,
    resume: Path | None = None,
) -> WarmResult:
    """Read what the plan names into the caches, and return the result (`pgsweep warm run`).

    Args:
        conninfo: as libpq understands it.
        options: what, and how.
        stop: ends it in good order after the calls that are under way.
        journal: where to write down what is done; it stays only where not all is done.
        resume: the journal of a run that did not finish.
    """
    return run.run(conninfo, options or WarmOptions(), stop=stop, journal=journal, resume=resume)


def warm_save(conninfo: str, path: Path, *, keep: int = 1, source: PoolSource = "auto") -> WarmSaveResult:
    """Write which blocks lie in the caches to a heat file (`pgsweep warm save`).

    Args:
        conninfo: any database of the server.
        path: the file.
        keep: how many files, the new one and earlier ones.
        source: how the pool is read.
    """
    with opened(conninfo, source) as access:
        return save.save(access, path, keep=keep)


def warm_restore(
    conninfo: str, path: Path, options: RestoreOptions | None = None, *, stop: threading.Event | None = None
) -> WarmRestoreResult:
    """Bring the blocks of a heat file back into the caches (`pgsweep warm restore`)."""
    heat = read_heat(path)
    return restore.restore(conninfo, path, heat, options or RestoreOptions(), stop=stop or threading.Event())


def warm_check(
    conninfo: str, path: Path, *, conditions: Sequence[str] = (), source: PoolSource = "auto"
) -> WarmCheckResult:
    """Return how much of a heat file is resident now (`pgsweep warm check`).

    Args:
        conninfo: any database of the server.
        path: the file.
        conditions: such as `resident<0.9`; the result has those that hold.
        source: how the pool is read.
    """
    wanted = [parse_condition(text, check.CONDITION_NAMES) for text in conditions]
    heat = read_heat(path)
    with opened(conninfo, source) as access:
        return check.check(access, path, heat, wanted)


def warm_keep(
    conninfo: str,
    options: KeepOptions,
    *,
    seconds: float | None = None,
    stop: threading.Event | None = None,
    report: Callable[[WarmKeepSample], None] | None = None,
) -> WarmKeepResult:
    """Keep relations resident until a time or a stop (`pgsweep warm keep`).

    Args:
        conninfo: the database of the relations.
        options: which relations, and how.
        seconds: end after that time.
        stop: set it to end.
        report: called at each report with what was done.
    """
    return Keeper(conninfo, options, report=report).run(seconds=seconds, stop=stop)


def load_plan(
    conninfo: str, files: Sequence[str], table: str, options: LoadOptions | None = None
) -> LoadResult:
    """Return how files would be loaded into a table, and why so (`pgsweep load --plan`); nothing is changed.

    Args:
        conninfo: the database of the table.
        files: names, patterns, or `-` for standard input.
        table: as SQL has it.
        options: how to read the files, and how to load them.
    """
    return loading.plan_load(conninfo, files, table, options or LoadOptions())


def load_run(
    conninfo: str,
    files: Sequence[str],
    table: str,
    options: LoadOptions | None = None,
    *,
    stop: threading.Event | None = None,
    journal: Path | None = None,
    rejects: Path | None = None,
) -> LoadResult:
    """Load files into a table, and return the plan and what was done (`pgsweep load`).

    Args:
        conninfo: the database of the table.
        files: names, patterns, or `-` for standard input.
        table: as SQL has it.
        options: how to read the files, and how to load them.
        stop: ends it in good order; `load_resume` goes on.
        journal: the local copy of the journal; in the user's state folder by default.
        rejects: where records go that the server refuses; needs `max_rejects` in the options.
    """
    return loading.load_files(
        conninfo, files, table, options or LoadOptions(), stop=stop, journal=journal, rejects=rejects
    )


def load_compare(
    conninfo: str,
    files: Sequence[str],
    table: str,
    options: LoadOptions | None = None,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> LoadCompareResult:
    """Return which practices of loading pay for a table and a file (`pgsweep load --compare`).

    Args:
        conninfo: the database of the table; a copy of it is made and undone there.
        files: names or patterns; a sample of the first is used.
        table: as SQL has it.
        options: how to read the files.
        progress: receives how far it is.
        stop: ends it after the practice that is under way.
    """
    return load_practices.compare_practices(
        conninfo, files, table, options or LoadOptions(), progress=progress or NullListener(), stop=stop
    )
