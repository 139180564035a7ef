"""The uses of memory in a budget, each now, and at both ends (see pgsweep.memory.budget)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pgsweep.host.pagetables import page_tables_of
from pgsweep.memory.processes import ASSUMED, CLIENT
from pgsweep.pg.catalog.memory_settings import MemorySettings
from pgsweep.records.budget import BudgetPart
from pgsweep.records.memory import MemoryProcess, MemoryResult
from pgsweep.units import BLOCK_BYTES, format_bytes

_BACKEND_BYTES_PER_BUFFER: Final = 64 + 52


def touched_at_most(shared_buffers_bytes: int, segment_bytes: int) -> int:
    """Return how much of the shared memory a backend touches that has used every page of the pool.

    The pool, and for each buffer its descriptor (64 bytes) and its place in the lookup table (52); the rest
    belongs to the checkpointer, to other backends or to nobody yet (buf_init.c, buf_table.c).
    """
    return min(
        segment_bytes, shared_buffers_bytes + shared_buffers_bytes // BLOCK_BYTES * _BACKEND_BYTES_PER_BUFFER
    )


def connections_of(seen: MemoryResult) -> list[MemoryProcess]:
    """Return the client backends without those of pgsweep; where there is no other, the smallest of these.

    One that has read catalogs and statistics is larger than one that has just begun.
    """
    clients = [p for p in seen.processes if p.kind == CLIENT and not p.own]
    return clients or sorted((p for p in seen.processes if p.own), key=lambda p: p.cost_bytes or 0)[:1]


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared memory, in bytes.

    Attributes:
        pool: shared_buffers.
        now, size_now: what is there of it today, and what the server asked for.
        size: what it asks for in the budget.
        counted: it takes part of the memory that there is.
    """

    pool: int
    now: int
    size_now: int
    size: int
    counted: bool

    def part(self, *, assumed: bool) -> BudgetPart:
        """Return its use of the memory."""
        there = f"{format_bytes(self.now)} of it are there now"
        if assumed:
            there = "all of it is taken to be there"
        sizes = (self.now, self.size, self.size) if self.counted else (0, 0, 0)
        return part(
            "shared memory",
            sizes,
            ASSUMED if assumed else "measured" if self.size == self.size_now else "predicted",
            f"shared_buffers {format_bytes(self.pool)} and {format_bytes(self.size - self.pool)} around it"
            + ("" if self.size == self.size_now else f", {format_bytes(self.size_now)} in all now")
            + (f"; {there}" if self.counted else "; in huge pages, which the memory cgroup does not count"),
        )


@dataclass(frozen=True, slots=True)
class Processes:
    """What the processes take for themselves, in bytes.

    Attributes:
        seen: all of them.
        own_tables: page tables that a connection has besides those of the shared memory.
        page: size of the pages of the shared memory.
        touched: how much of the shared memory a connection touches that has used all of the pool.
    """

    seen: MemoryResult
    own_tables: int
    page: int
    touched: int

    @property
    def clients(self) -> list[MemoryProcess]:
        """Return those by which connections are judged."""
        return connections_of(self.seen)

    @property
    def others(self) -> list[MemoryProcess]:
        """Return those that are no connections."""
        return [p for p in self.seen.processes if p.kind != CLIENT]

    @property
    def mean(self) -> int:
        """Return the private memory of a connection on average."""
        return sum(p.private_bytes or 0 for p in self.clients) // max(1, len(self.clients))

    @property
    def p95(self) -> int:
        """Return the private memory below which 95% of the connections are."""
        sizes = sorted(p.private_bytes or 0 for p in self.clients)
        return sizes[-(-95 * len(sizes) // 100) - 1] if sizes else 0

    @property
    def tables_mean(self) -> int:
        """Return the page tables of a connection today."""
        return sum(p.page_tables_bytes for p in self.clients) // max(1, len(self.clients))

    @property
    def tables_full(self) -> int:
        """Return the same once it has used all of the pool; today's may have more than a fresh one."""
        return max(self.own_tables + page_tables_of(self.touched, self.page), self.tables_mean)

    def parts(self, connections: int, *, assumed: bool) -> list[BudgetPart]:
        """Return their uses of the memory, with this number of connections."""
        seen, others, clients = self.seen, self.others, self.clients
        own = sum(p.page_tables_bytes for p in seen.processes if p.own)
        private = sum(p.private_bytes or 0 for p in others)
        at = "" if seen.connections else " (a session that has just begun, as there is no client)"
        at += f"; {seen.pgsweep_sessions} of pgsweep are left out" if seen.pgsweep_sessions > 1 else ""
        each = (
            f"private memory, {format_bytes(self.mean)} each on average today, 95% below "
            f"{format_bytes(self.p95)}{at}"
        )
        tables = f"{format_bytes(self.tables_mean)} a connection today"
        if assumed:
            each = f"{format_bytes(self.mean)} of private memory each"
            tables = f"{format_bytes(self.tables_mean)} a connection"
        return [
            part(
                "page tables",
                (
                    seen.totals.page_tables_bytes - own,
                    sum(p.page_tables_bytes for p in others) + connections * self.tables_mean,
                    (len(others) + connections) * self.tables_full,
                ),
                ASSUMED if assumed else "predicted",
                f"{tables}, {format_bytes(self.tables_full)} once it has "
                f"used all of the pool, in pages of {format_bytes(self.page)}",
            ),
            part(
                "connections",
                (
                    sum(p.private_bytes or 0 for p in clients) if seen.connections else 0,
                    connections * self.mean,
                    connections * self.p95,
                ),
                ASSUMED if assumed else "predicted",
                each,
            ),
            part(
                "background processes",
                (private, private, private),
                ASSUMED if assumed else "measured",
                f"private memory of {len(others)} process{'es' if len(others) != 1 else ''}",
            ),
        ]


def part(name: str, sizes: Sequence[int], kind: str, why: str) -> BudgetPart:
    """Return a use of the memory: its bytes now, and at both ends."""
    now, low, high = sizes
    return BudgetPart(name=name, now_bytes=now, low_bytes=low, high_bytes=high, kind=kind, why=why)


def allowed_parts(
    settings: MemorySettings, version_num: int, connections: int, plan_nodes: int
) -> list[BudgetPart]:
    """Return what the settings allow besides, which counts at the high end."""
    node, vacuum, workers = settings.largest_node, settings.vacuum(version_num), settings.autovacuum_workers

    def allowed(name: str, size_bytes: int, why: str) -> BudgetPart:
        return part(name, (0, 0, size_bytes), ASSUMED, why)

    found = [
        allowed(
            "work_mem",
            (connections + settings.parallel_workers) * plan_nodes * node,
            f"{plan_nodes} sorts or hashes of {format_bytes(node)} (work_mem x hash_mem_multiplier) in each "
            f"connection and {settings.parallel_workers} parallel workers; what is in use now is included in "
            "connections",
        ),
        allowed(
            "temp_buffers",
            connections * settings.temp_buffers,
            f"{format_bytes(settings.temp_buffers)} in each connection that uses temporary tables",
        ),
        allowed("autovacuum", workers * vacuum, f"{workers} workers of {format_bytes(vacuum)}"),
        allowed(
            "maintenance",
            settings.maintenance_work_mem,
            f"one CREATE INDEX or the like of {format_bytes(settings.maintenance_work_mem)} "
            "(maintenance_work_mem, which its parallel workers share)",
        ),
    ]
    # What the logical replication slots take that decode large transactions (reorderbuffer.c).
    slots, each = settings.logical_slots, settings.logical_decoding_work_mem
    if slots:
        why = (
            f"{format_bytes(each)} (logical_decoding_work_mem) for each of {slots} logical replication slots"
        )
        found.append(allowed("logical decoding", slots * each, why))
    return found
