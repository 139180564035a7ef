"""The memory budget."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance
from pgsweep.records.place import Place


class BudgetPart(msgspec.Struct, frozen=True, kw_only=True):
    """One use of the host's memory: now, and at max_connections between what is likely and what is possible.

    Attributes:
        now_bytes: measured.
        low_bytes: at max_connections if all connections are like today's.
        high_bytes: at max_connections if each takes what the settings allow.
        kind: of the latter two: `measured`, `predicted` from measured values, or `assumed`.
        why: how the values are computed.
    """

    name: str
    now_bytes: int
    low_bytes: int
    high_bytes: int
    kind: str
    why: str


class BudgetResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server's memory fits, now and at max_connections.

    Attributes:
        capacity_bytes: the host's memory, or the limit of the server's memory cgroup where that is smaller.
        limit_bytes: that limit; null where there is none.
        max_connections: what the budget is for: the setting, or what was asked for.
        plan_nodes: assumed number of sorts and hashes that a connection holds at once, each as large as
        allowed.
        page_cache_bytes: what is left for cached files: now, at the low and at the high end; negative where
        the
            memory does not suffice.
        verdict: `fits`, `tight` (at the high end it does not fit, or leaves next to no page cache), or `will
        be
            killed` (not even at the low end).
        safe_connections: how many fit at the high end.
        work_mem_bytes: the one that the budget is for: the setting, or what was asked for.
        fitting_connections: the most for which the verdict is `fits`, with this work_mem.
        fitting_work_mem_bytes: the largest work_mem for which the verdict is `fits`, with max_connections;
            null where none is small enough, or where no sort or hash is assumed.
        missing_huge_pages: how many more must be set aside for another max_connections; null where none was
            asked for, or the server uses none.
        place: where the server runs; null in older results.
        possible_connections: how many fit at the low end; with more, processes are killed.
        database: the session's; null in older results, and where there was no session.
    """

    schema: str = "pgsweep.budget/1"
    server_version: str
    memory_bytes: int
    capacity_bytes: int
    limit_bytes: int | None
    connections: int
    max_connections: int
    plan_nodes: int
    parts: list[BudgetPart]
    page_cache_bytes: tuple[int, int, int]
    verdict: str
    reasons: list[str]
    safe_connections: int
    possible_connections: int
    work_mem_bytes: int = 0
    fitting_connections: int | None = None
    fitting_work_mem_bytes: int | None = None
    missing: list[Missing] = []
    missing_huge_pages: int | None = None
    place: Place | None = None
    database: str | None = None
    provenance: Provenance | None = None
