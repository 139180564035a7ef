"""Snapshots as inference takes them: each with the clock hand's position and the number of used buffers.

A position is read from two words that the server changes one after the other (StrategySyncStart,
freelist.c): read in between, it seems to lie a whole pass ahead or behind. Such a snapshot is left out. Where
more than a few positions do not ascend, the table is not what was recorded.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.commands import recording
from pgsweep.errors import EvidenceError
from pgsweep.sizing.observed import Table

_MOST_DROPPED_SHARE = 0.05
_ALWAYS_TOLERATED = 1

_MOST_NUMBERS_A_SNAPSHOT: Final = 10


@dataclass(frozen=True, kw_only=True)
class UsedSnapshots:
    """The snapshots that are used.

    Attributes:
        snapshots: the rows of those that are used.
        used_blocks: buffers in use at each of them, free ones not counted; shape (used snapshots,).
        hand_buffers: by number of the snapshot, how many buffers the hand had passed; empty where not seen.
            Those of used snapshots ascend.
        loads: pages loaded into buffers of the pool until each used snapshot, as far as the counters show.
        warnings: what was left out, in words.
    """

    snapshots: Table
    used_blocks: NDArray[np.int64]
    hand_buffers: NDArray[np.int64]
    loads: NDArray[np.float64] | None
    warnings: tuple[str, ...]


def used_snapshots(
    snapshots: Table, times: Table, counters: Table, *, pool_blocks: int, rate: float = 1.0
) -> UsedSnapshots:
    """Return the snapshots without those whose hand position cannot be right.

    Args:
        times: may lack the last snapshots, or all: a recording was cut.
        rate: share of blocks that the snapshots hold.

    Raises:
        EvidenceError: too many of them, or a buffer that the pool does not have.
    """
    if len(snapshots["frame"]) and int(snapshots["frame"].max()) > pool_blocks:
        raise _broken(f"a snapshot has buffer {int(snapshots['frame'].max())} of {pool_blocks}")
    if len(times["used_frames"]) and int(times["used_frames"].max()) > pool_blocks:
        raise _broken(f"{int(times['used_frames'].max())} buffers of {pool_blocks} are in use")
    if len(np.setdiff1d(snapshots["snapshot"], times["snapshot"])):
        seen, rows = np.unique(snapshots["snapshot"], return_counts=True)
        times = {"snapshot": seen, "used_frames": np.minimum(np.rint(rows / rate), pool_blocks)}
    numbers = np.unique(np.concatenate([snapshots["snapshot"], times["snapshot"]]))
    # Snapshots are numbered from 0 on; a few may be missing.
    if len(numbers) and int(numbers[-1]) > _MOST_NUMBERS_A_SNAPSHOT * (len(numbers) + 1000):
        raise _broken(f"a snapshot has the number {int(numbers[-1])}, and there are {len(numbers)}")
    known, positions = _positions(numbers, times, counters)
    if 2 * int(known.sum()) <= len(numbers):
        # Not seen, or hardly ever: then none is used.
        return UsedSnapshots(
            snapshots=snapshots,
            used_blocks=times["used_frames"].astype(np.int64),
            hand_buffers=np.zeros(0, np.int64),
            loads=_loads(times, counters),
            warnings=(),
        )
    right = known.copy()
    right[known] = ascending(positions[known])
    wrong = int((known & ~right).sum())
    if wrong > max(_ALWAYS_TOLERATED, _MOST_DROPPED_SHARE * len(numbers)):
        raise _broken(f"the clock hand goes backwards in {wrong} of {len(numbers)} snapshots")
    # The hand of a snapshot that is left out is never used; a column without gaps is simpler to use.
    every = np.arange(int(numbers[-1]) + 1)
    hand_buffers = np.interp(every, numbers[right], positions[right]).astype(np.int64)
    left_out = numbers[~right]
    kept = ~np.isin(snapshots["snapshot"], left_out)
    warnings = []
    if wrong:
        warnings.append(
            f"{wrong} of {len(numbers)} snapshots left out: the clock hand was read while the server "
            "changed it, and seems to go backwards"
        )
    if missing := int((~known).sum()):
        warnings.append(
            f"{missing} of {len(numbers)} snapshots left out: the clock hand was not seen at them"
        )
    return UsedSnapshots(
        snapshots={name: column[kept] for name, column in snapshots.items()},
        used_blocks=times["used_frames"][~np.isin(times["snapshot"], left_out)].astype(np.int64),
        hand_buffers=hand_buffers,
        loads=None,
        warnings=tuple(warnings),
    )


def _loads(times: Table, counters: Table) -> NDArray[np.float64] | None:
    """Return the loads counted until each snapshot: buffers taken for pages, or else the misses of all."""
    if "begin_seconds" not in times:
        return None
    for scope, name in (("bgwriter", "buffers_alloc"), ("database", "blks_read")):
        rows = np.flatnonzero((counters["scope"] == scope) & (counters["name"] == name))
        if not len(rows):
            continue
        loads = np.zeros(len(times["begin_seconds"]))
        # A sample lists only what changed since the one before.
        for what in np.unique(counters["object"][rows]):
            own = rows[counters["object"][rows] == what]
            seconds, values = counters["seconds"][own], counters["value"][own]
            if len(own) and (np.diff(seconds) >= 0).all():
                loads += np.interp(times["begin_seconds"], seconds, np.maximum.accumulate(values))
        return loads
    return None


def _positions(
    numbers: NDArray[np.int64], times: Table, counters: Table
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return for each snapshot whether the hand was seen at it, and how many buffers it had passed.

    A position is recorded with the time at which its snapshot began.
    """
    hand = (counters["scope"] == "pool") & (counters["name"] == "hand_frames")
    values = counters["value"][hand].astype(np.int64)
    if "begin_seconds" in times:
        snapshot_at = dict(zip(times["begin_seconds"].tolist(), times["snapshot"].tolist(), strict=True))
        at = [snapshot_at.get(seconds, -1) for seconds in counters["seconds"][hand].tolist()]
    else:
        at = list(range(len(values)))
    found = dict(zip(at, values.tolist(), strict=True))
    known = np.array([number in found for number in numbers.tolist()], dtype=bool)
    positions = np.array([found.get(number, 0) for number in numbers.tolist()], dtype=np.int64)
    return known, positions


def ascending(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which values to keep so that the rest never goes backwards and most are kept.

    The longest ascending subsequence, by patience sorting.
    """
    ends: list[int] = []
    end_at: list[int] = []
    before = np.full(len(values), -1)
    for at, value in enumerate(values.tolist()):
        length = bisect_right(ends, value)
        before[at] = end_at[length - 1] if length else -1
        ends[length : length + 1] = [value]
        end_at[length : length + 1] = [at]
    kept = np.zeros(len(values), dtype=bool)
    at = end_at[-1] if end_at else -1
    while at >= 0:
        kept[at] = True
        at = int(before[at])
    return kept


def _broken(cause: str) -> EvidenceError:
    return EvidenceError(
        "the snapshots of this evidence contradict each other",
        cause=cause,
        hint=f"record again: {recording()}",
    )
