"""A budget of a server whose processes are not seen: by its settings, and what a process is assumed to take.

For `pgsweep memory budget --ram SIZE` over SQL alone, as on hosted services. Each part says that it is
assumed; measured is only what the server itself says of its shared memory.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import msgspec

from pgsweep.commands import on_server
from pgsweep.memory.budget import BUFFER_OVERHEAD, assumed_elsewhere, estimate_budget
from pgsweep.memory.processes import ASSUMED, CLIENT, connection_cost
from pgsweep.pg.catalog.activity import read_activity
from pgsweep.pg.catalog.memory_settings import read_memory_settings
from pgsweep.pg.catalog.place import read_place
from pgsweep.pg.catalog.server import read_server
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.refusals import explained
from pgsweep.records.budget import BudgetResult
from pgsweep.records.cache import Missing
from pgsweep.records.memory import MemoryHost, MemoryProcess, MemoryResult, MemoryTotals
from pgsweep.units import format_bytes

PRIVATE_BYTES: Final = 5 << 20
"""Private memory of a session with some catalogs and plans in its caches: assumed, as for predictions."""

_BACKGROUND: Final = 8
_BACKGROUND_BYTES: Final = 2 << 20
_TABLES_BYTES: Final = 150_000
"""Page tables of a process without those for shared memory: as measured of fresh sessions on 15 and 18."""

_ELSEWHERE: Final = 0.1
"""The share of the memory that the kernel and other programs take."""


def budget_by_settings(
    connection: Connection,
    ram_bytes: int,
    *,
    max_connections: int | None = None,
    plan_nodes: int = 2,
    work_mem_bytes: int | None = None,
) -> BudgetResult:
    """Return the budget of a server for an amount of memory, from its settings alone.

    Args:
        connection: a session on it.
        ram_bytes: the memory of its host, or what of it the server may use.
        max_connections, plan_nodes, work_mem_bytes: as in `budget`.
    """
    with explained():
        server, settings = read_server(connection), read_memory_settings(connection)
        place = read_place(connection, None)
        activity = read_activity(connection)
    if work_mem_bytes is not None:
        settings = dataclasses.replace(settings, work_mem=work_mem_bytes)
    clients = sum(1 for one in activity.values() if one.kind == CLIENT and not one.pgsweep)
    shared = settings.shared_memory or round(settings.shared_buffers * BUFFER_OVERHEAD)
    kinds = [CLIENT] * max(1, clients) + ["background"] * _BACKGROUND
    processes = [_process(number, kind) for number, kind in enumerate(kinds)]
    private = sum(one.private_bytes or 0 for one in processes)
    tables = sum(one.page_tables_bytes for one in processes)
    real = shared + private + tables
    seen = MemoryResult(
        server_version=server.version,
        database=server.database,
        at="",
        seconds=0.0,
        max_connections=settings.max_connections,
        huge_pages=server.settings.get("huge_pages_status") == "on",
        connections=clients,
        cost=connection_cost(processes[: max(1, clients)]),
        totals=MemoryTotals(
            shared_memory_bytes=shared,
            shared_memory_size_bytes=shared,
            shared_memory_method="size",
            private_bytes=private,
            page_tables_bytes=tables,
            swap_bytes=0,
            real_bytes=real,
            rss_bytes=real,
        ),
        host=MemoryHost(
            memory_bytes=ram_bytes,
            available_bytes=max(0, round(ram_bytes * (1 - _ELSEWHERE)) - real),
            page_tables_bytes=tables,
            page_cache_bytes=0,
            limit_bytes=None,
            limit_used_bytes=None,
        ),
        processes=processes,
        missing=[_assumed()],
        place=place,
    )
    result = estimate_budget(
        seen,
        settings,
        server.version_num,
        connections=max_connections or settings.max_connections,
        plan_nodes=plan_nodes,
        own_tables_bytes=_TABLES_BYTES,
        huge_page_bytes=2 << 20,
    )
    if settings.shared_memory is not None:
        size, *others = result.parts
        result = msgspec.structs.replace(
            result, parts=[msgspec.structs.replace(size, kind="measured"), *others]
        )
    return assumed_elsewhere(result, f"a tenth of the memory of the host, {format_bytes(ram_bytes)}")


def _assumed() -> Missing:
    return Missing(
        what="the server's processes",
        why="they are not seen from here: what each takes is assumed, not measured, and so are the "
        "numbers of "
        "connections that fit",
        enable=f"run {on_server('pgsweep memory budget')} on the server's host, where that is possible",
    )


def _process(number: int, kind: str) -> MemoryProcess:
    private = PRIVATE_BYTES if kind == CLIENT else _BACKGROUND_BYTES
    return MemoryProcess(
        pid=number,
        server_pid=number,
        kind=kind,
        user=None,
        database=None,
        application=None,
        state=None,
        query=None,
        private_bytes=private,
        page_tables_bytes=_TABLES_BYTES,
        cost_bytes=private + _TABLES_BYTES,
        shared_touched_bytes=0,
        huge_pages_bytes=0,
        swap_bytes=0,
        rss_bytes=private,
        method=ASSUMED,
    )
