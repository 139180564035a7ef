"""What became of the buffers between two looks at the pool a few milliseconds apart.

Two snapshots laps apart show where pages stand; two close together show them move: a usage_count that rose
was accessed, one that fell was passed by the clock hand, a page that is gone was evicted, and a new one
stands at the number of accesses that its first visit brought so far. The hand's own position tells which
buffers it passed in between. Kept are counts by relation, not buffers: a pair of looks is a few hundred rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pgsweep._native import PoolTable

ABSENT: Final = 255
"""Stands for a usage_count where there is none: the page came in between, or went."""

RELATIONS: Final = 64
"""Relations with most buffers are told apart; the others stand together, as relation 0."""

_STATES: Final = 7
_FORK_TAGS: Final = ("block", "rel", "db", "spc", "fork")

Columns = dict[str, NDArray[Any]]


def hand_frames(pool: PoolTable) -> int | None:
    """Return how many buffers the hand has passed since the server started, where it can be seen."""
    if pool["hand"] is None:
        return None
    next_victim, rounds, _ = pool["hand"]
    return rounds * pool["buffers"] + next_victim


class Files:
    """The relation files that are told apart.

    Args:
        pool: those with most buffers in it are.
    """

    def __init__(self, pool: PoolTable) -> None:
        keys, first, buffers = np.unique(_key(pool), return_index=True, return_counts=True)
        most = np.sort(np.argsort(buffers)[::-1][:RELATIONS])
        self._keys = keys[most]
        at = first[most]
        # Number 0 are all others.
        self.spc = np.append(np.uint32(0), pool["spc"][at])
        self.db = np.append(np.uint32(0), pool["db"][at])
        self.rel = np.append(np.uint32(0), pool["rel"][at])

    def numbers(self, pool: PoolTable) -> NDArray[np.int64]:
        """Return the number of each used buffer's file."""
        if not len(self._keys):
            return np.zeros(len(pool["rel"]), np.int64)
        key = _key(pool)
        found = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        # One number in two tablespaces is two files.
        known = (self._keys[found] == key) & (self.spc[found + 1] == pool["spc"])
        return np.where(known, found + 1, 0)


def _key(pool: PoolTable) -> NDArray[np.uint64]:
    return (pool["db"].astype(np.uint64) << np.uint64(32)) | pool["rel"]


def compare(first: PoolTable, second: PoolTable, files: Files) -> Columns | None:
    """Count what became of the buffers, by file, usage_count before and after, and whether the hand passed.

    Returns:
        Columns `spc` to `buffers` of the table `transitions`; nothing where one look was held up so much
        longer than the other that there is no one interval between them, or where the hand is not seen.
    """
    begin, end = hand_frames(first), hand_frames(second)
    interval_ns = second["begin_ns"] - first["begin_ns"]
    took_ns = [pool["end_ns"] - pool["begin_ns"] for pool in (first, second)]
    if begin is None or end is None or abs(took_ns[0] - took_ns[1]) > 0.2 * interval_ns:
        return None
    buffers = first["buffers"]
    passed = _passed(buffers, begin, end, interval_ns, took_ns)
    index = [np.full(buffers, -1, np.int64) for _ in range(2)]
    for at, pool in zip(index, (first, second), strict=True):
        at[pool["frame"] - 1] = np.arange(len(pool["frame"]))
    used = [at >= 0 for at in index]
    same = used[0] & used[1]
    for name in _FORK_TAGS:
        same[same] = first[name][index[0][same]] == second[name][index[1][same]]

    numbers = [files.numbers(pool) for pool in (first, second)]
    counts = [pool["usage_count"].astype(np.int64) for pool in (first, second)]
    stayed = (index[0][same], index[1][same])
    gone, came = used[0] & ~same, used[1] & ~same
    packed = np.concatenate(
        [
            _pack(numbers[0][stayed[0]], counts[0][stayed[0]], counts[1][stayed[1]], passed[same]),
            _pack(numbers[0][index[0][gone]], counts[0][index[0][gone]], _STATES - 1, passed[gone]),
            _pack(numbers[1][index[1][came]], _STATES - 1, counts[1][index[1][came]], passed[came]),
        ]
    )
    amounts = np.bincount(packed)
    found = np.flatnonzero(amounts)
    state = np.array([0, 1, 2, 3, 4, 5, ABSENT], np.uint8)
    file = found // (2 * _STATES * _STATES)
    return {
        "spc": files.spc[file],
        "db": files.db[file],
        "rel": files.rel[file],
        "before": state[found // (2 * _STATES) % _STATES],
        "after": state[found // 2 % _STATES],
        "passed": found % 2 == 1,
        "buffers": amounts[found].astype(np.int32),
    }


def _pack(
    file: NDArray[np.int64],
    before: NDArray[np.int64] | int,
    after: NDArray[np.int64] | int,
    passed: NDArray[np.bool_],
) -> NDArray[np.int64]:
    return ((file * _STATES + before) * _STATES + after) * 2 + passed


def _passed(buffers: int, begin: int, end: int, interval_ns: int, took_ns: list[int]) -> NDArray[np.bool_]:
    """Tell for each buffer whether the hand passed it between its two readings.

    The descriptors are read one after the other while the hand moves on, so each has its own two moments.
    """
    # The round is counted an instant after the hand has come round: it may seem to have jumped back.
    moved = end - begin + (buffers if end < begin else 0)
    frame = np.arange(buffers)
    share = frame / buffers
    pace = moved / interval_ns
    stood = [begin + pace * took_ns[0] * share, begin + moved + pace * took_ns[1] * share]
    passes = [np.ceil((np.floor(at) - frame) / buffers) for at in stood]
    return np.asarray(passes[1] > passes[0])
