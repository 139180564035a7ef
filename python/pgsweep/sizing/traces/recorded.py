"""The trace of a recording: its pages numbered, and grouped by relation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.evidence.schema import FLAG_PINNED
from pgsweep.records import trace_reasons
from pgsweep.records.reasons import Reason
from pgsweep.sizing.snapshots.observations import Table, file_keys
from pgsweep.sizing.traces.accesses import (
    EXTEND,
    EXTENSION,
    MISS,
    REPEAT,
    UNCOUNTED,
    Floats,
    PoolState,
    Trace,
)
from pgsweep.sizing.traces.drops import PAGE_COLUMNS, blocks_of_dropped, with_drops
from pgsweep.sizing.traces.rings import ScanRing, scan_rings

if TYPE_CHECKING:
    from pgsweep.sizing.observed import Observation

_OF_RELATIONS = ("spc", "db", "rel", "name", "blocks_begin", "blocks_end", "fsm_blocks", "vm_blocks")

_DROPPED_ANYWAY = 1 << 17
_DROPPED_A_ROW = 32
"""Blocks of dropped relations that get a number though nothing accesses them: a fixed number, and a number
for each row of the evidence."""


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """What was recorded of a server's accesses.

    Attributes:
        accesses, relations, drops: tables of the evidence.
        database_oid: whose accesses are counted, as the server counts them (pg_stat_database).
        seconds: how long was watched, where that is longer than the accesses show.
        recovery_pid: the process that replays WAL on a standby. What it accesses moves the pool and is
            counted for no database (ReadBufferWithoutRelcache, bufmgr.c).
        pool_blocks: size of the traced pool, 0 where it is not known.
        snapshot: rows of the evidence's table `snapshots`: the pool when the trace began.
        hand: the buffer at which the clock hand stood then.
    """

    accesses: Table
    relations: Table
    database_oid: int
    seconds: float = 0.0
    recovery_pid: int | None = None
    pool_blocks: int = 0
    drops: Table | None = None
    snapshot: Table | None = None
    hand: int | None = None

    @classmethod
    def of(cls, observation: Observation) -> Self:
        """Return the facts of a recording, or of one that was changed.

        Raises:
            EvidenceError: a table cannot be read.
        """
        server = observation.server
        recovery = server.host.get("recovery_pid")
        hand = observation.counters.first("pool", "next_victim")
        snapshots = observation.table("snapshots")
        first = snapshots["snapshot"] == 0
        return cls(
            accesses=observation.table("accesses"),
            # Not kept: of a large catalog it is more than all that the replay needs.
            relations=observation.evidence.table("relations", _OF_RELATIONS),
            drops=observation.table("drops"),
            snapshot={name: column[first] for name, column in snapshots.items()},
            database_oid=server.database_oid,
            # A limit of events ends what is known with the last of them.
            seconds=0.0 if server.ended_by == "limit" else server.seconds,
            recovery_pid=None if recovery is None else int(recovery),
            pool_blocks=server.pool_blocks,
            hand=None if hand is None else int(hand),
        )

    @property
    def has_drops(self) -> bool:
        """Whether pages were dropped while it was recorded."""
        return self.drops is not None and len(self.drops["row"]) > 0


def read_trace(observation: Observation) -> Trace:
    """Return the accesses of a recording as the simulator takes them.

    Raises:
        EvidenceError: a table cannot be read, or the drops contradict the accesses.
    """
    return build_trace(TraceFacts.of(observation))


def build_trace(facts: TraceFacts) -> Trace:
    """Number the pages of the evidence's tables and group them, by relation and a rest.

    Raises:
        EvidenceError: the drops contradict the accesses.
    """
    accesses, relations = facts.accesses, facts.relations
    count = len(accesses["block"])
    ids, names, notes = _numbered(facts)
    pages = ids[:count]
    key, relation_key = file_keys(names, relations)
    page_group, group_pages = _grouped(key, relation_key, relations)
    new_page = np.zeros(len(key), dtype=bool)
    new_page[pages[accesses["kind"] == EXTENSION]] = True
    counted = accesses["db"] == facts.database_oid
    if facts.recovery_pid is not None:
        counted &= accesses["pid"] != facts.recovery_pid
    rings = scan_rings(accesses, relations, facts.drops, key[pages], relation_key, facts.pool_blocks)
    at = accesses["time_ns"].astype(np.float64) / 1e9
    trace = Trace(
        pages=pages,
        seconds=at,
        duration_seconds=max(facts.seconds, float(at.max()) if len(at) else 0.0),
        flags=_flags(accesses, rings, counted),
        backend=accesses["pid"].astype(np.uint32),
        owner_access=rings.access,
        owner=rings.owner,
        owner_blocks=rings.blocks,
        page_group=page_group,
        group_pages=group_pages,
        group_names=(*(str(name) for name in relations["name"]), "other relations"),
        counted=counted,
        missed=accesses["kind"] == MISS,
        new_page=new_page,
        start=_pool_state(facts, ids[count:]),
        notes=notes,
    )
    if facts.drops is None or not facts.has_drops or not len(key):
        return trace
    return with_drops(trace, facts.drops, names)


def _numbered(facts: TraceFacts) -> tuple[NDArray[np.uint32], Table, tuple[Reason, ...]]:
    """Return the number of each page accessed, seen in the pool, and dropped; the names of all; and notes."""
    parts = [facts.accesses]
    if facts.snapshot is not None:
        parts.append(facts.snapshot)
    notes: tuple[Reason, ...] = ()
    if facts.drops is not None and facts.has_drops:
        rows = sum(len(part["block"]) for part in parts)
        most = max(_DROPPED_ANYWAY, _DROPPED_A_ROW * rows)
        dropped, unnamed = blocks_of_dropped(facts.drops, facts.relations, most)
        parts.append(dropped)
        if unnamed:
            notes = (trace_reasons.blocks_not_tracked(unnamed),)
    columns = [np.concatenate([part[name] for part in parts]) for name in PAGE_COLUMNS]
    ids, found = _native.dense_ids(*columns)
    names: Table = {name: found[name] for name in PAGE_COLUMNS}  # type: ignore[literal-required]
    return ids, names, notes


def _grouped(
    key: NDArray[np.int64], relation_key: NDArray[np.int64], relations: Table
) -> tuple[NDArray[np.int64], Floats]:
    """Return the group of each page, that of its relation or a rest, and how many pages each group has."""
    order = np.argsort(relation_key, kind="stable")
    rest = len(relation_key)
    if rest:
        found = order[np.minimum(np.searchsorted(relation_key[order], key), rest - 1)]
        page_group = np.where(relation_key[found] == key, found, rest)
    else:
        page_group = np.full(len(key), rest)
    seen = np.bincount(page_group, minlength=rest + 1).astype(np.float64)
    blocks = np.maximum(relations["blocks_begin"], relations["blocks_end"])
    blocks = blocks + relations["fsm_blocks"] + relations["vm_blocks"]
    return page_group.astype(np.int64), np.maximum(np.append(blocks, 0.0), seen)


def _flags(accesses: Table, rings: ScanRing, counted: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the simulator's flags of each access."""
    flags = rings.strategy.astype(np.uint8)
    flags |= np.where((accesses["flags"] & FLAG_PINNED) > 0, REPEAT, 0).astype(np.uint8)
    flags |= np.where(accesses["kind"] == EXTENSION, EXTEND, 0).astype(np.uint8)
    flags |= np.where(counted, 0, UNCOUNTED).astype(np.uint8)
    return flags


def _pool_state(facts: TraceFacts, ids: NDArray[np.uint32]) -> PoolState | None:
    snapshot, hand = facts.snapshot, facts.hand
    if snapshot is None or hand is None or not len(snapshot["frame"]):
        return None
    return PoolState(
        pages=ids[: len(snapshot["frame"])].copy(),
        usage_counts=snapshot["usage_count"].astype(np.uint8),
        buffers=(snapshot["frame"] - 1).astype(np.uint32),
        hand=hand,
    )
