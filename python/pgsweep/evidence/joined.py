"""Recordings of one server, one after the other, read as a single one over a window of time.

A recording without end is made in pieces. A window over several of them has the snapshots of all, under
new numbers, and of the counters a limited number of samples: they are cumulative, so the values in between
add nothing to a sum. Pieces are joined from the newest backwards, as long as they fit: the same server with
the same shared_buffers and settings, the same sample of blocks, and a clock hand that only moves on.

Processor time between two pieces is not part of the observation, because the recorder itself computes then.
Other programs are assumed to have used as much as during the pieces.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep.errors import EvidenceError
from pgsweep.evidence.endings import WENT_AWAY
from pgsweep.evidence.processor_times import joined_host
from pgsweep.evidence.reader import Evidence
from pgsweep.evidence.schema import TABLES, EvidenceMeta, other_cluster
from pgsweep.evidence.writer import EvidenceWriter

Table = dict[str, NDArray[Any]]

MOST_SNAPSHOTS: Final = 60
"""Of a window."""

MOST_SAMPLES: Final = 120
"""Of counters."""

_OVERLAP_SECONDS: Final = 1.0
"""By how much two recordings may seem to overlap, as the clock is adjusted."""

_SAME: Final = (
    "source",
    "server_version_num",
    "block_size_bytes",
    "shared_buffers_blocks",
    "settings",
    "database",
    "database_oid",
    "sampling",
)


class JoinedEvidence:
    """A window over pieces of one recording, with what a prediction from snapshots takes of `Evidence`.

    Attributes:
        meta: of the newest piece, with the length of the window, and the pace of the processors over all.
        warnings: of all pieces that are in the window, each once.
    """

    def __init__(self, meta: EvidenceMeta, tables: dict[str, Table], warnings: list[str]) -> None:
        self.meta = meta
        self.warnings = warnings
        self._tables = tables

    def table(self, name: str, columns: Sequence[str] | None = None) -> Table:
        """Return a table, or some of its columns; tables that are not joined are empty."""
        empty = {column: np.zeros(0, dtype=kind) for column, kind in TABLES[name].items() if kind != "str"}
        found = self._tables.get(name, empty)
        return {column: found[column] for column in (TABLES[name] if columns is None else columns)}

    def parts(self, name: str, columns: Sequence[str] | None = None) -> Iterator[Table]:
        """Yield a table as one part."""
        yield self.table(name, columns)

    def write(self, path: Path) -> None:
        """Write it as evidence, in one piece that `Evidence` reads.

        Raises:
            EvidenceError: it cannot be written.
        """
        with EvidenceWriter(path, self.meta) as writer:
            for name, rows in self._tables.items():
                (writer.replace if name == "relations" else writer.append)(name, rows)
            writer.close(self.meta)

    @classmethod
    def of(
        cls,
        pieces: Sequence[Path],
        seconds: float,
        *,
        seed: int = 0,
        most_snapshots: int = MOST_SNAPSHOTS,
        most_samples: int = MOST_SAMPLES,
    ) -> JoinedEvidence:
        """Join the pieces that cover the newest `seconds`.

        Args:
            pieces: folders of evidence in the order of recording; the last may still be written.
            seconds: length of the window, back from the last sample of the newest piece.
            seed: draws the snapshots where there are more than `most_snapshots`.
            most_snapshots: how many are kept.
            most_samples: of counters that are read.

        Raises:
            EvidenceError: there is no piece with a snapshot yet.
        """
        opened = _fitting(pieces, seconds)
        if not opened:
            raise EvidenceError(
                "there is no evidence yet",
                cause="the recording has just begun, or the server was restarted or changed",
                hint="wait a minute",
            )
        parts = [_Recording(evidence, offset) for evidence, offset in opened]
        _bridge_gaps(parts)
        end = max(float(part.counters["seconds"].max(initial=0.0)) for part in parts)
        begin = max(end - seconds, 0.0)
        times = {name: np.concatenate([p.times[name] for p in parts]) for name in TABLES["snapshot_times"]}
        owner = np.concatenate([np.full(len(p.times["snapshot"]), n) for n, p in enumerate(parts)])
        inside = np.flatnonzero(times["begin_seconds"] >= begin)
        kept = _drawn(inside, most_snapshots, seed)
        snapshots = []
        for number, row in enumerate(kept.tolist()):
            snapshots.append((int(owner[row]), int(times["snapshot"][row]), number))
        counters = _thinned(
            {name: np.concatenate([p.counters[name] for p in parts]) for name in TABLES["counters"]},
            begin,
            times["begin_seconds"][kept],
            most_samples,
        )
        chosen = {name: column[kept] for name, column in times.items()}
        chosen["snapshot"] = np.arange(len(kept), dtype=np.int32)
        newest = opened[-1][0]
        span = counters["seconds"][counters["scope"] != "pool"]
        length = float(span.max() - span.min()) if len(span) else 0.0
        if not len(kept) or length <= 0:
            raise EvidenceError("there is no snapshot yet", hint="wait a minute")
        warnings = list(
            dict.fromkeys(
                text
                for evidence, _ in opened
                for text in evidence.meta.warnings  # what the reader adds is about the end of a piece
            )
        )
        meta = msgspec.structs.replace(
            newest.meta,
            seconds=length,
            ended_by="",
            warnings=warnings,
            host=joined_host(newest.meta, [evidence.meta for evidence, _ in opened]),
        )
        tables = {
            "snapshots": _rows_of(parts, snapshots),
            "snapshot_times": chosen,
            "counters": counters,
            "relations": _relations([p.evidence.table("relations") for p in parts]),
            "read_times": _read_times(parts, begin),
        }
        return cls(meta, tables, warnings)


class _Recording:
    """One recording, its times counted from the beginning of the oldest in the window."""

    def __init__(self, evidence: Evidence, offset: float) -> None:
        self.evidence = evidence
        self.offset = offset
        self.times = evidence.table("snapshot_times")
        self.counters = evidence.table("counters")
        for name in ("begin_seconds", "end_seconds"):
            self.times[name] = self.times[name] + offset
        # The same addition for both: the hand's position is found by the time of its snapshot.
        self.counters["seconds"] = self.counters["seconds"] + offset


def _bridge_gaps(parts: Sequence[_Recording]) -> None:
    """Assume that other programs used the processors between two recordings as much as during them.

    Changes the host's counter `host_cpu_seconds`, which is read at both ends of a recording.
    """
    ends = [(_host_ends(part, "server_cpu_seconds"), _host_ends(part, "host_cpu_seconds")) for part in parts]
    known = [(server, host) for server, host in ends if server is not None and host is not None]
    seconds = sum(host[1][0] - host[0][0] for _, host in known)
    if len(known) < len(parts) or seconds <= 0:
        return
    used = sum(host[1][1] - host[0][1] - (server[1][1] - server[0][1]) for server, host in known)
    others = max(used, 0.0) / seconds
    moved = 0.0
    for part, (server, host), (next_server, next_host) in zip(parts[1:], known, known[1:], strict=False):
        gap_seconds = max(next_host[0][0] - host[1][0], 0.0)
        of_server = max(next_server[0][1] - server[1][1], 0.0)
        moved += of_server + others * gap_seconds - (next_host[0][1] - host[1][1])
        rows = (part.counters["scope"] == "host") & (part.counters["name"] == "host_cpu_seconds")
        part.counters["value"] = np.where(rows, part.counters["value"] + moved, part.counters["value"])


def _host_ends(part: _Recording, name: str) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return when a counter of the host was first and last read, and its values; None where it was not."""
    counters = part.counters
    of_host = counters["scope"] == "host"
    values = counters["value"][of_host & (counters["name"] == name)]
    if not len(values):
        return None
    seconds = counters["seconds"][of_host]
    return (float(seconds.min()), float(values[0])), (float(seconds.max()), float(values[-1]))


def _read_times(parts: Sequence[_Recording], begin: float) -> Table:
    """Return the stretches in which reads were timed, from `begin` on, under new numbers."""
    found: list[Table] = []
    stretches = 0
    for part in parts:
        rows = part.evidence.table("read_times")
        rows = {name: column[rows["begin_seconds"] + part.offset >= begin] for name, column in rows.items()}
        for name in ("begin_seconds", "end_seconds"):
            rows[name] = rows[name] + part.offset
        rows["stretch"] = (rows["stretch"] + stretches).astype(np.int32)
        stretches = int(rows["stretch"].max(initial=stretches - 1)) + 1
        found.append(rows)
    return {name: np.concatenate([rows[name] for rows in found]) for name in TABLES["read_times"]}


def _fitting(pieces: Sequence[Path], seconds: float) -> list[tuple[Evidence, float]]:
    """Return the newest pieces that belong together and cover the window, and their offsets; oldest first."""
    chosen: list[Evidence] = []
    first_hand: float | None = None
    apart: list[float] = []
    for path in reversed(pieces):
        try:
            evidence = Evidence.open(path)
        except EvidenceError:
            if chosen:
                break
            continue
        if not evidence.has("snapshots") or not evidence.has("counters"):
            if chosen:
                break
            continue
        later = 0.0
        if chosen:
            newer = chosen[-1]
            if evidence.meta.ended_by in WENT_AWAY | {"refused"}:
                break
            if any(getattr(evidence.meta, name) != getattr(newer.meta, name) for name in _SAME):
                break
            if other_cluster(evidence.meta.system_identifier, newer.meta.system_identifier):
                break
            between = _seconds_between(evidence.meta, newer.meta)
            # A clock that was set back makes the order unknown; then the newer ones are used alone.
            if between is None:
                break
            later = between
        hands = _hands(evidence)
        if hands is not None:
            if first_hand is not None and hands[1] > first_hand:
                break
            first_hand = hands[0]
        apart.append(later)
        chosen.append(evidence)
        if sum(apart) + chosen[0].meta.seconds >= seconds:
            break
    chosen.reverse()
    if not chosen:
        return []
    offsets = [0.0, *itertools.accumulate(reversed(apart[1:]))]
    return list(zip(chosen, offsets, strict=True))


def _seconds_between(older: EvidenceMeta, newer: EvidenceMeta) -> float | None:
    """Return the seconds between the beginnings of two recordings; None where their clock was set back.

    Within one boot of the recorder's host by a clock that nobody sets, else by the wall clock. That one was
    set back too if the newer recording seems to begin before the older one ends.
    """
    boots = [meta.host.get("boot_id") for meta in (older, newer)]
    since = [meta.host.get("started_boot_seconds", "") for meta in (older, newer)]
    if boots[0] is not None and boots[0] == boots[1]:
        with suppress(ValueError):
            between = float(since[1]) - float(since[0])
            return between if 0 < between < float("inf") else None
    began = [datetime.datetime.fromisoformat(meta.started_at).timestamp() for meta in (older, newer)]
    between = began[1] - began[0]
    return between if between > 0 and between >= older.seconds - _OVERLAP_SECONDS else None


def _hands(evidence: Evidence) -> tuple[float, float] | None:
    """Return the first and the last position of the clock hand; None where it was not seen."""
    counters = evidence.table("counters", ["scope", "name", "value"])
    values = counters["value"][(counters["scope"] == "pool") & (counters["name"] == "hand_frames")]
    return (float(values[0]), float(values[-1])) if len(values) else None


def _drawn(rows: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """Return the rows, or one at random of each of `most` stretches of them."""
    if len(rows) <= most:
        return rows
    edges = np.linspace(0, len(rows), most + 1).astype(np.int64)
    random = np.random.default_rng(seed)
    return rows[[int(random.integers(a, b)) for a, b in itertools.pairwise(edges)]]


def _rows_of(parts: Sequence[_Recording], snapshots: list[tuple[int, int, int]]) -> Table:
    """Return the rows of the chosen snapshots (piece, its number there, its new number), renumbered."""
    chunks: list[Table] = []
    for index, part in enumerate(parts):
        wanted = {there: number for owner, there, number in snapshots if owner == index}
        if not wanted:
            continue
        numbers = np.full(max(wanted) + 1, -1, dtype=np.int32)
        numbers[list(wanted)] = list(wanted.values())
        for rows in part.evidence.parts("snapshots"):
            there = rows["snapshot"]
            new = np.where(there < len(numbers), numbers[np.minimum(there, len(numbers) - 1)], -1)
            mask = new >= 0
            if mask.any():
                chunks.append({**{n: c[mask] for n, c in rows.items()}, "snapshot": new[mask]})
    return {
        name: np.concatenate([chunk[name] for chunk in chunks]) if chunks else np.zeros(0, kind)
        for name, kind in TABLES["snapshots"].items()
    }


def _thinned(counters: Table, begin: float, snapshots: NDArray[np.float64], most: int) -> Table:
    """Return the counters at `most` times of all at which they were read, from `begin` on.

    The first sample has every counter's value then, a later one those that changed since the one before, as
    in a recording. The positions of the clock hand stay for the snapshots that stay.
    """
    ours = counters["scope"] == "pool"
    hands = {n: c[ours & np.isin(counters["seconds"], snapshots)] for n, c in counters.items()}
    rows = {name: column[~ours] for name, column in counters.items()}
    times = _sample_times(rows, begin, most)
    grid = np.searchsorted(times, rows["seconds"])
    inside = grid < len(times)
    rows = {name: column[inside] for name, column in rows.items()}
    grid = grid[inside]
    keys = _numbered(rows)
    order = np.lexsort((rows["seconds"], grid, keys))
    last = np.ones(len(order), dtype=np.bool_)
    if len(order) > 1:
        k, g = keys[order], grid[order]
        last[:-1] = (k[1:] != k[:-1]) | (g[1:] != g[:-1])
    kept = np.sort(order[last])
    kept = kept[np.argsort(grid[kept], kind="stable")]
    thin = {name: column[kept] for name, column in rows.items()}
    thin["seconds"] = times[grid[kept]]
    thin["sample"] = grid[kept].astype(np.int32)
    hands["sample"] = np.searchsorted(times, hands["seconds"]).astype(np.int32)
    return {name: np.concatenate([thin[name], hands[name]]) for name in TABLES["counters"]}


def _sample_times(rows: Table, begin: float, most: int) -> NDArray[np.float64]:
    """Return times at which counters were read, the last before `begin` and the last of all among them.

    Those of relations are read more rarely, and are compared with the database's of the same time: so half
    of the times are theirs, as long as there are as many.
    """

    def some(times: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        times = np.concatenate([times[times <= begin][-1:], times[times > begin]])
        if len(times) > count:
            times = times[np.linspace(0, len(times) - 1, count).astype(np.int64)]
        return times

    of_relations = some(np.unique(rows["seconds"][rows["scope"] == "relation"]), max(2, most // 2))
    every = np.unique(rows["seconds"])
    if len(of_relations):
        every = every[every >= of_relations[0]]
    return np.union1d(of_relations, some(every, max(2, most - len(of_relations))))


def _numbered(rows: Table) -> NDArray[np.int64]:
    """Return a number for each counter by its scope, object and name."""
    found: dict[tuple[str, str, str], int] = {}
    keys = zip(rows["scope"], rows["object"], rows["name"], strict=True)
    return np.array([found.setdefault(key, len(found)) for key in keys], dtype=np.int64)


def _relations(tables: Sequence[Table]) -> Table:
    """Return the relations of all pieces: as they were at first, and as they are at last."""
    rows: dict[tuple[int, int, int], dict[str, Any]] = {}
    for table in tables:
        for number in range(len(table["rel"])):
            row = {name: column[number] for name, column in table.items()}
            key = (int(row["spc"]), int(row["db"]), int(row["rel"]))
            known = rows.get(key)
            rows[key] = row if known is None else {**row, "blocks_begin": known["blocks_begin"]}
    return {
        name: np.array(
            [row[name] for row in rows.values()], dtype=object if kind == "str" else np.dtype(kind)
        )
        for name, kind in TABLES["relations"].items()
    }
