"""The trace of a recording: its pages numbered, and grouped by relation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.evidence.schema import FLAG_PINNED
from pgsweep.sizing.snapshots.observations import Table, file_keys
from pgsweep.sizing.traces.accesses import EXTEND, EXTENSION, MISS, REPEAT, UNCOUNTED, PoolState, Trace
from pgsweep.sizing.traces.drops import blocks_of_dropped, with_drops
from pgsweep.sizing.traces.rings import scan_rings

_PAGE = ("spc", "db", "rel", "fork", "block")
_DROPPED_ANYWAY = 1 << 17
_DROPPED_A_ROW = 32
"""Blocks of dropped relations that get a number though nothing accesses them: a fixed number, and a number
for each row of the evidence."""


def from_evidence(
    accesses: Table,
    relations: Table,
    database_oid: int,
    *,
    seconds: float = 0.0,
    recovery_pid: int | None = None,
    pool_blocks: int = 0,
    drops: Table | None = None,
    snapshot: Table | None = None,
    hand: int | None = None,
) -> Trace:
    """Number the pages of the evidence's tables and group them, by relation and a rest.

    Args:
        accesses, relations, drops: tables of the evidence.
        database_oid: whose accesses are counted, as the server counts them (pg_stat_database).
        seconds: how long was watched, where that is longer than the accesses show.
        recovery_pid: the process that replays WAL on a standby. What it accesses moves the pool and is
            counted for no database (ReadBufferWithoutRelcache, bufmgr.c).
        pool_blocks: size of the traced pool, 0 where it is not known.
        snapshot: rows of the evidence's table `snapshots`: the pool when the trace began.
        hand: the buffer at which the clock hand stood then.
    """
    parts = [accesses]
    if snapshot is not None:
        parts.append(snapshot)
    count = len(accesses["block"])
    notes = []
    if drops is not None and len(drops["row"]):
        rows = sum(len(part["block"]) for part in parts)
        most = max(_DROPPED_ANYWAY, _DROPPED_A_ROW * rows)
        of_dropped, unnamed = blocks_of_dropped(drops, relations, most)
        parts.append(of_dropped)
        if unnamed:
            notes.append(
                f"the dropped relations had {unnamed} blocks more than are tracked: those of them that were "
                "in the pool are assumed to stay in it"
            )
    columns = [np.concatenate([part[name] for part in parts]) for name in _PAGE]
    ids, names = _native.dense_ids(*columns)
    pages = ids[:count]
    key, relation_key = file_keys(names, relations)
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
    group_pages = np.maximum(np.append(blocks, 0.0), seen)

    extends = accesses["kind"] == EXTENSION
    new_page = np.zeros(len(key), dtype=bool)
    new_page[pages[extends]] = True
    rings = scan_rings(accesses, relations, drops, key[pages], relation_key, pool_blocks)
    flags = rings.strategy.astype(np.uint8)
    flags |= np.where((accesses["flags"] & FLAG_PINNED) > 0, REPEAT, 0).astype(np.uint8)
    flags |= np.where(extends, EXTEND, 0).astype(np.uint8)
    counted = accesses["db"] == database_oid
    if recovery_pid is not None:
        counted &= accesses["pid"] != recovery_pid
    flags |= np.where(counted, 0, UNCOUNTED).astype(np.uint8)
    at = accesses["time_ns"].astype(np.float64) / 1e9
    trace = Trace(
        pages=pages,
        seconds=at,
        duration_seconds=max(seconds, float(at.max()) if len(at) else 0.0),
        flags=flags,
        backend=accesses["pid"].astype(np.uint32),
        owner_access=rings.access,
        owner=rings.owner,
        owner_blocks=rings.blocks,
        page_group=page_group.astype(np.int64),
        group_pages=group_pages,
        group_names=(*(str(name) for name in relations["name"]), "other relations"),
        counted=counted,
        missed=accesses["kind"] == MISS,
        new_page=new_page,
        start=_pool_state(snapshot, hand, ids[count:]),
        notes=tuple(notes),
    )
    if drops is None or not len(drops["row"]) or not len(key):
        return trace
    return with_drops(trace, drops, dict(names))


def _pool_state(snapshot: Table | None, hand: int | None, ids: NDArray[np.uint32]) -> PoolState | None:
    if snapshot is None or hand is None or not len(snapshot["frame"]):
        return None
    return PoolState(
        pages=ids[: len(snapshot["frame"])].copy(),
        usage_counts=snapshot["usage_count"].astype(np.uint8),
        buffers=(snapshot["frame"] - 1).astype(np.uint32),
        hand=hand,
    )
