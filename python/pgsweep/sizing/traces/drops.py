"""Pages that DROP and TRUNCATE take out of the pool while a trace is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgsweep.commands import recording
from pgsweep.errors import EvidenceError
from pgsweep.sizing.snapshots.observations import Table, file_keys
from pgsweep.sizing.traces.accesses import DROP, Trace

PAGE_COLUMNS = ("spc", "db", "rel", "fork", "block")
_ALL_FORKS = 255
_FORKS = 4

_DROPS_ANYWAY = 1 << 20
_DROPS_A_PAGE = 64
"""Pages that drops may remove: a fixed number, and a number for each access and each page of the trace."""


def blocks_of_dropped(drops: Table, relations: Table, most: int) -> tuple[Table, int]:
    """Return the blocks that dropped relations had at the beginning: a warm pool may hold any of them.

    Args:
        most: how many to name; the first ones.

    Returns:
        The blocks, and how many there are besides.
    """
    drop_key, relation_key = file_keys(drops, relations)
    parts: dict[str, list[NDArray[np.uint32]]] = {name: [] for name in PAGE_COLUMNS}
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


def with_drops(trace: Trace, drops: Table, names: Mapping[str, NDArray[Any]]) -> Trace:
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
                hint=f"record again: {recording()}",
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
    return replace(
        trace,
        pages=np.insert(trace.pages, position, page.astype(np.uint32)),
        seconds=np.insert(trace.seconds, position, seconds),
        flags=np.insert(trace.flags, position, np.uint8(DROP)),
        backend=np.insert(trace.backend, position, np.uint32(0)),
        owner_access=(access + np.searchsorted(position, access, side="right")).astype(np.uint64),
        counted=np.insert(trace.counted, position, False),
        missed=np.insert(trace.missed, position, False),
    )
