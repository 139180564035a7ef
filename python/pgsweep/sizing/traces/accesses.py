"""A trace in the form that the simulator takes: numbered pages, flags, rings, drops, the pool at first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.errors import EvidenceError
from pgsweep.evidence.schema import FLAG_PINNED
from pgsweep.records import trace_reasons
from pgsweep.records.reasons import Reason
from pgsweep.sizing.snapshots.observations import Table, file_keys
from pgsweep.sizing.traces.rings import scan_rings

Floats = NDArray[np.float64]

HIT, MISS, EXTENSION = range(3)
"""Kinds of accesses in the evidence, and outcomes of a replay."""

STRATEGY, REPEAT, EXTEND = _native.STRATEGY_MASK, _native.REPEAT, _native.EXTENSION
DROP, UNCOUNTED = _native.DROP, _native.UNCOUNTED
"""Bits of the simulator's flags (core/src/trace.rs)."""

BULKREAD, VACUUM = _native.BULKREAD, _native.VACUUM
"""Access strategies, as in those flags and in the evidence."""

_PAGE = ("spc", "db", "rel", "fork", "block")
_ALL_FORKS = 255
_FORKS = 4

_DROPPED_ANYWAY = 1 << 17
_DROPPED_A_ROW = 32
"""Blocks of dropped relations that get a number though nothing accesses them: a fixed number, and a number
for each row of the evidence."""

_DROPS_ANYWAY = 1 << 20
_DROPS_A_PAGE = 64
"""Pages that drops may remove: a fixed number, and a number for each access and each page of the trace."""


@dataclass(frozen=True, kw_only=True)
class PoolState:
    """What the server's pool held when the trace began.

    Attributes:
        pages: dense ids.
        usage_counts: of each.
        buffers: the buffer of each, from 0.
        hand: the buffer at which the clock hand stood.
    """

    pages: NDArray[np.uint32]
    usage_counts: NDArray[np.uint8]
    buffers: NDArray[np.uint32]
    hand: int


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Accesses in the form that the simulator takes.

    A row is an access, or a page that is dropped (flag 32).

    Attributes:
        pages: dense ids, shape (rows,).
        seconds: time of each row from the beginning.
        duration_seconds: how long was watched, also where nothing happened before or after the accesses.
        flags: the simulator's (strategy, repeat, extension, drop, not counted).
        backend: the process that made each access; 0 for drops.
        owner_access, owner, owner_blocks: rings, as the simulator takes them.
        page_group: group of each page, shape (pages,).
        group_pages: how many pages each group has, visited or not.
        group_names: name of each group, for words; may be empty.
        counted: which rows are accesses of the database.
        missed: which accesses the server missed itself.
        new_page: which pages were created during the trace.
        start: the pool at the beginning, where it was seen.
        notes: what was left out, for the verdict.
    """

    pages: NDArray[np.uint32]
    seconds: Floats
    duration_seconds: float
    flags: NDArray[np.uint8]
    backend: NDArray[np.uint32]
    owner_access: NDArray[np.uint64]
    owner: NDArray[np.uint32]
    owner_blocks: NDArray[np.uint32]
    page_group: NDArray[np.int64]
    group_pages: Floats
    group_names: tuple[str, ...] = ()
    counted: NDArray[np.bool_]
    missed: NDArray[np.bool_]
    new_page: NDArray[np.bool_]
    start: PoolState | None = None
    notes: tuple[Reason, ...] = ()


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
        of_dropped, unnamed = _blocks_of_dropped(drops, relations, most)
        parts.append(of_dropped)
        if unnamed:
            notes.append(trace_reasons.blocks_not_tracked(unnamed))
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
    return _with_drops(trace, drops, dict(names))


def _pool_state(snapshot: Table | None, hand: int | None, ids: NDArray[np.uint32]) -> PoolState | None:
    if snapshot is None or hand is None or not len(snapshot["frame"]):
        return None
    return PoolState(
        pages=ids[: len(snapshot["frame"])].copy(),
        usage_counts=snapshot["usage_count"].astype(np.uint8),
        buffers=(snapshot["frame"] - 1).astype(np.uint32),
        hand=hand,
    )


def _blocks_of_dropped(drops: Table, relations: Table, most: int) -> tuple[Table, int]:
    """Return the blocks that dropped relations had at the beginning: a warm pool may hold any of them.

    Args:
        most: how many to name; the first ones.

    Returns:
        The blocks, and how many there are besides.
    """
    drop_key, relation_key = file_keys(drops, relations)
    parts: dict[str, list[NDArray[np.uint32]]] = {name: [] for name in _PAGE}
    left, unnamed = most, 0
    for row in np.flatnonzero(np.isin(relation_key, drop_key) & (relations["blocks_begin"] > 0)):
        count = int(relations["blocks_begin"][row])
        blocks = np.arange(min(count, left), dtype=np.uint32)
        left -= len(blocks)
        unnamed += count - len(blocks)
        parts["block"].append(blocks)
        for name in ("spc", "db", "rel"):
            parts[name].append(np.full(len(blocks), relations[name][row], dtype=np.uint32))
        parts["fork"].append(np.zeros(len(blocks), dtype=np.uint32))
    none = np.zeros(0, dtype=np.uint32)
    table = {name: np.concatenate([none, *columns]) for name, columns in parts.items()}
    table["fork"] = table["fork"].astype(np.uint8)
    return table, unnamed


class _Files:
    """The pages of each file and of each database.

    Args:
        names: of all pages.
    """

    def __init__(self, names: Table) -> None:
        self._db = names["db"]
        place = (names["fork"].astype(np.int64) << 32) | names["block"].astype(np.int64)
        order = np.lexsort((place, names["rel"], names["spc"], names["db"]))
        columns = [names[name][order].astype(np.int64) for name in ("db", "spc", "rel")]
        begins = np.flatnonzero(np.append(True, np.any([np.diff(column) != 0 for column in columns], axis=0)))
        ends = np.append(begins[1:], len(order))
        place = place[order]
        self._files = {
            (int(columns[0][b]), int(columns[1][b]), int(columns[2][b])): (order[b:e], place[b:e])
            for b, e in zip(begins, ends, strict=True)
        }
        self._databases: dict[int, NDArray[np.int64]] = {}

    def pages(self, db: int, spc: int, rel: int, fork: int, first_block: int) -> NDArray[np.int64]:
        """Return the pages that a drop takes out, ascending; without a `rel` all of the database."""
        if not rel:
            if db not in self._databases:
                self._databases[db] = np.flatnonzero(self._db == db)
            return self._databases[db]
        if (db, spc, rel) not in self._files:
            return np.zeros(0, dtype=np.int64)
        pages, place = self._files[db, spc, rel]
        forks = range(_FORKS) if fork == _ALL_FORKS else (fork,)
        bounds = [np.searchsorted(place, [one << 32 | first_block, (one + 1) << 32]) for one in forks]
        return np.sort(np.concatenate([pages[begin:end] for begin, end in bounds]))


def _with_drops(trace: Trace, drops: Table, names: dict[str, Any]) -> Trace:
    """Return the trace with a row for every page that DROP or TRUNCATE takes out of the pool.

    A page that was taken out and not accessed since is not there to be taken out again.

    Raises:
        EvidenceError: the drops name pages far more often than there are pages and accesses.
    """
    files = _Files(names)
    # Each access by page, then by position.
    accessed = np.sort((trace.pages.astype(np.int64) << 32) | np.arange(len(trace.pages)))
    dropped_at = np.full(len(names["block"]), -1, dtype=np.int64)
    at: list[NDArray[np.int64]] = []
    dropped: list[NDArray[np.int64]] = []
    left = _DROPS_ANYWAY + _DROPS_A_PAGE * (len(trace.pages) + len(names["block"]))
    for row in np.argsort(drops["row"], kind="stable").tolist():
        pages = files.pages(*(int(drops[name][row]) for name in ("db", "spc", "rel", "fork", "first_block")))
        left -= len(pages)
        if left < 0:
            raise EvidenceError(
                "the drops in this evidence contradict its accesses",
                cause="the same pages are dropped again and again, and nothing accesses them in between",
                hint="record again: pgsweep record -o NAME.evidence",
            )
        when = min(int(drops["row"][row]), len(trace.pages))
        before = dropped_at[pages]
        since = np.searchsorted(accessed, (pages << 32) | np.maximum(before, 0))
        again = since < np.searchsorted(accessed, (pages << 32) | when)
        pages = pages[again | (before < 0)]
        dropped_at[pages] = when
        dropped.append(pages)
        at.append(np.full(len(pages), when, dtype=np.int64))
    position = np.concatenate(at)
    sequence = np.argsort(position, kind="stable")
    position, page = position[sequence], np.concatenate(dropped)[sequence]
    if len(trace.pages):
        seconds = trace.seconds[np.minimum(position, len(trace.pages) - 1)]
    else:
        seconds = np.zeros(len(position))
    access = trace.owner_access.astype(np.int64)
    return Trace(
        pages=np.insert(trace.pages, position, page.astype(np.uint32)),
        seconds=np.insert(trace.seconds, position, seconds),
        duration_seconds=trace.duration_seconds,
        flags=np.insert(trace.flags, position, np.uint8(DROP)),
        backend=np.insert(trace.backend, position, np.uint32(0)),
        owner_access=(access + np.searchsorted(position, access, side="right")).astype(np.uint64),
        owner=trace.owner,
        owner_blocks=trace.owner_blocks,
        page_group=trace.page_group,
        group_pages=trace.group_pages,
        group_names=trace.group_names,
        counted=np.insert(trace.counted, position, False),
        missed=np.insert(trace.missed, position, False),
        new_page=trace.new_page,
        start=trace.start,
        notes=trace.notes,
    )


def first_accesses(trace: Trace, count: int) -> Trace:
    """Return the trace up to a number of accesses, with the drops among them; pages keep their numbers."""
    accesses = np.flatnonzero((trace.flags & DROP) == 0)
    if len(accesses) <= count:
        return trace
    rows = int(accesses[count]) if count else 0
    owned = int(np.searchsorted(trace.owner_access, rows))
    return replace(
        trace,
        pages=trace.pages[:rows],
        seconds=trace.seconds[:rows],
        duration_seconds=float(trace.seconds[rows]),
        flags=trace.flags[:rows],
        backend=trace.backend[:rows],
        owner_access=trace.owner_access[:owned],
        owner=trace.owner[:owned],
        counted=trace.counted[:rows],
        missed=trace.missed[:rows],
    )
