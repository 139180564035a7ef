"""What was observed, as the models take it: facts about the server, its counters, and the tables.

Evidence is read here. What lies below, the models of sizing and what follows from them, sees neither a folder
nor its meta.json. Each table is read once and kept, apart from the two that take most of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from pgsweep.commands import on_server
from pgsweep.errors import EvidenceError
from pgsweep.evidence.disk_latency import latencies_of
from pgsweep.evidence.endings import WENT_AWAY, went_away
from pgsweep.evidence.exported import ExportedTrace
from pgsweep.evidence.kept import Steps as Steps  # noqa: PLC0414  # models are given them
from pgsweep.evidence.meta import check_trace, exported_trace
from pgsweep.evidence.names import relation_names
from pgsweep.evidence.processor_times import PACE_BY, copy_of, nanoseconds, pace_of
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.schema import EXTENSIONS_ARE_READS_BELOW
from pgsweep.evidence.store import Evidence
from pgsweep.plain import shell_word
from pgsweep.sizing.nothing_seen import check_observed, nothing_seen
from pgsweep.sizing.rules import rules_of, unsettled
from pgsweep.units import BLOCK_BYTES
from pgsweep.versions import beyond_tested

if TYPE_CHECKING:
    from pgsweep import _native
    from pgsweep.evidence.exported import TraceTables
    from pgsweep.evidence.schema import EvidenceMeta
    from pgsweep.host.processor_pace import Pace
    from pgsweep.records.prediction import DiskLatency

Floats = NDArray[np.float64]
Table = dict[str, NDArray[Any]]
Rate = Callable[[str, str, str], float | None]
"""Returns the growth per second of a counter, by scope, object and name; None where it is not there."""

_READ_AGAIN: Final = frozenset({"accesses", "snapshots"})
"""Tables that are not kept: the pages of a large pool, and each access of a trace, take gigabytes."""

_MOST_ROWS: Final = 1 << 21
"""Rows of snapshots that are read; a model takes some 200 bytes for each. 80 snapshots of 4 GB have twenty
times as many. Half as many rows moved no ratio by more than .001 (benchmarks/large)."""

_NOT_REPORTED: Final = ("host", "pool")
"""Scopes of counters that the recorder reads itself."""

_MOST_DELAY_SECONDS: Final = 1.5
"""Most seconds by which the statistics lag at one end of a recording."""

_FEWEST_BLOCKS: Final = 16
"""Of shared_buffers (guc_tables.c)."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server that was observed, and how.

    Attributes:
        source: `sql`, `peek` or `trace`.
        server_version_num: as the server reports it; 0 where none was seen.
        block_size_bytes: as it was built.
        settings: that decide what a buffer pool does.
        host: facts about the machine, where it could be seen.
        pool_blocks: of shared_buffers.
        database: whose accesses were observed; `database_oid` of it.
        seconds: length of the observation.
        accesses_per_second: of pages, from a trace that lost none; 0 where that is not known.
        complete: the recorder ended the observation itself; `ended_by` says why it ended.
        lost_events: that the recorder knows it lost.
        overhead: what the recording itself cost.
        sampling_rate: the share of the blocks that snapshots take.
        warnings: of the recorder.
        copy_seconds: processor time of a read of a block from the page cache; None where not measured.
        pace: how fast the processors were; None where it was not observed to the end. `pace_by` names the
            interpreter, which is a part of that time.
        latencies: of the disk by depth; none where they were not measured, and `no_latencies` says why not.
    """

    source: str
    server_version_num: int
    block_size_bytes: int
    settings: dict[str, str]
    host: dict[str, str]
    pool_blocks: int
    database: str
    database_oid: int
    seconds: float
    accesses_per_second: float
    complete: bool
    ended_by: str
    lost_events: int
    overhead: dict[str, float]
    sampling_rate: float
    warnings: list[str]
    copy_seconds: float | None
    pace: Pace | None
    pace_by: str
    latencies: list[DiskLatency]
    no_latencies: str

    @classmethod
    def of(cls, meta: EvidenceMeta) -> Self:
        """Return what meta.json says."""
        latencies, no_latencies = latencies_of(meta.host)
        return cls(
            source=meta.source,
            server_version_num=meta.server_version_num,
            block_size_bytes=meta.block_size_bytes,
            settings=meta.settings,
            host=meta.host,
            pool_blocks=meta.shared_buffers_blocks,
            database=meta.database,
            database_oid=meta.database_oid,
            seconds=meta.seconds,
            accesses_per_second=meta.accesses_per_second or 0.0,
            complete=meta.complete,
            ended_by=meta.ended_by,
            lost_events=meta.lost_events,
            overhead=meta.overhead,
            sampling_rate=BlockSample.from_meta(meta.sampling).rate,
            warnings=meta.warnings,
            copy_seconds=copy_of(meta),
            pace=pace_of(meta),
            pace_by=meta.host.get(PACE_BY, ""),
            latencies=latencies,
            no_latencies=no_latencies,
        )

    @property
    def rules(self) -> _native.Rules:
        """The rules of its buffer pool, made anew: a server of a version that has none is refused.

        Raises:
            EvidenceError: they are not known, or the settings are not those of a server.
        """
        return rules_of(self)

    @property
    def pool_bytes(self) -> int:
        """Size of shared_buffers."""
        return self.pool_blocks * BLOCK_BYTES

    @property
    def extensions_are_reads(self) -> bool:
        """Whether the server counts each new block as a read."""
        return self.server_version_num < EXTENSIONS_ARE_READS_BELOW

    @property
    def session_lost(self) -> str | None:
        """How the recorder lost its session, as its warning has it; None where it did not."""
        return went_away(self.ended_by) if self.ended_by in WENT_AWAY else None

    @property
    def io_is_timed(self) -> bool:
        """Whether the server measures how long its reads and writes take."""
        return self.settings.get("track_io_timing") == "on"

    def host_seconds(self, name: str) -> float | None:
        """Return a fact of the host that is in nanoseconds; None where it is not there or cannot be."""
        return nanoseconds(self.host, name)

    @property
    def doubtful_rules(self) -> list[str]:
        """Warnings about rules that are not those of a release that was tested."""
        known = (beyond_tested(self.server_version_num), unsettled(self))
        return [one for one in known if one]


class Counters:
    """The counters over the whole observation.

    Attributes:
        table: the rows; a sample has only what changed since the one before.
    """

    def __init__(self, table: Table, server: Server) -> None:
        self.table = table
        self._server = server

    @cached_property
    def _rows(self) -> dict[tuple[str, str, str], list[int]]:
        rows: dict[tuple[str, str, str], list[int]] = {}
        keys = zip(*(self.table[column].tolist() for column in ("scope", "object", "name")), strict=True)
        for at, key in enumerate(keys):
            rows.setdefault(key, []).append(at)
        return rows

    @cached_property
    def _spans(self) -> dict[str, tuple[float, float]]:
        """The first and the last second of each scope."""
        spans: dict[str, tuple[float, float]] = {}
        for scope, second in zip(self.table["scope"].tolist(), self.table["seconds"].tolist(), strict=True):
            first, last = spans.get(scope, (second, second))
            spans[scope] = (min(first, second), max(last, second))
        return spans

    def series(self, scope: str, named: str, name: str) -> Floats:
        """Return the values of one counter, from the first sample of its scope on; no values without it.

        A counter that is not in the first sample was 0 there.
        """
        rows = self._rows.get((scope, named, name), [])
        values = self.table["value"][rows].astype(np.float64)
        if rows and self.table["seconds"][rows[0]] > self._spans[scope][0]:
            return np.concatenate([np.zeros(1), values])
        return values

    def first(self, scope: str, name: str) -> float | None:
        """Return the first value of a counter, of whatever object; None where it is not there."""
        rows = self._rows_of(scope, name)
        return float(self.table["value"][rows[0]]) if rows else None

    def grown(self, scope: str, name: str) -> tuple[float, float] | None:
        """Return by how much a counter rose from its first value to its last, and in how many seconds.

        None where it is not there twice, or fell.
        """
        rows = self._rows_of(scope, name)
        if len(rows) < 2:
            return None
        first, last = rows[0], rows[-1]
        seconds = float(self.table["seconds"][last] - self.table["seconds"][first])
        grown = float(self.table["value"][last] - self.table["value"][first])
        return (grown, seconds) if seconds > 0 and grown >= 0 else None

    def objects(self, scope: str, name: str) -> set[str]:
        """Return the objects that have a counter."""
        return {key[1] for key in self._rows if key[0] == scope and key[2] == name}

    def counted_rate(self, scope: str, named: str, name: str) -> float | None:
        """Return the growth per second of a counter as it was counted; None where it is not there."""
        values = self.series(scope, named, name)
        if not len(values):
            return None
        first, last = self._spans[scope]
        # What is read of the host is no counter that is reset, but a sum over processes, of which some end.
        grown = float(values[-1] - values[0]) if scope == "host" else gained(values)
        return None if last - first <= 0 or grown < 0 else grown / (last - first)

    def rate(self, scope: str, named: str, name: str) -> float | None:
        """Return the growth per second of a counter; that of the statistics times `statistics_factor`."""
        found = self.counted_rate(scope, named, name)
        return found if found is None or scope in _NOT_REPORTED else found * self.statistics_factor

    @cached_property
    def statistics_factor(self) -> float:
        """How many times as much happened in a second as the server's statistics say; 1 where not known.

        Sessions report what they did once a second (src/backend/utils/activity/pgstat.c,
        PGSTAT_MIN_INTERVAL), each at times of its own. So up to a second of what each did before a recording
        is counted in it, and as much is not counted at its end: of eight seconds with four sessions 2 to 8%.
        A trace has seen all accesses at their time. What else a session did is reported together with them.
        """
        server = self._server
        accesses = sum(
            self.counted_rate("database", server.database, name) or 0.0 for name in ("blks_hit", "blks_read")
        )
        if accesses <= 0 or not 0 < server.accesses_per_second < math.inf:
            return 1.0
        factor = server.accesses_per_second / accesses
        # More than that is no delay: then the trace and the statistics are not of the same accesses.
        return factor if abs(factor - 1) * max(server.seconds, 1.0) <= _MOST_DELAY_SECONDS else 1.0

    def _rows_of(self, scope: str, name: str) -> list[int]:
        found = [rows for key, rows in self._rows.items() if key[0] == scope and key[2] == name]
        return sorted(row for rows in found for row in rows)


def gained(values: Floats) -> float:
    """Return by how much a counter rose in all, also where it was reset or its object dropped meanwhile.

    What was counted between the last sample and the reset is not in it.
    """
    return float(risen(values)[-1:].sum())


def risen(values: Floats) -> Floats:
    """Return by how much a counter rose up to each value, as `gained` counts it."""
    rises = np.diff(values, prepend=values[:1])
    return np.cumsum(np.where(rises < 0, values, rises))


class Observation:
    """A recording of either kind, a window over several, or a trace that was changed.

    Args:
        steps: that were computed of it before, or where to keep them.

    Attributes:
        server: that was observed.
        evidence: that it was read from.
        steps: computed of it.
    """

    def __init__(self, evidence: TraceTables, steps: Steps | None = None) -> None:
        self.evidence = evidence
        self.steps = steps or Steps()
        self._kept: dict[str, Table] = {}
        self.server = Server.of(evidence.meta)
        self._sample = _smaller_sample(evidence) if isinstance(evidence, Evidence) else None
        if self._sample is not None:
            self.server = replace(self.server, sampling_rate=self._sample.rate)

    @property
    def warnings(self) -> list[str]:
        """What a user must know about such a server and about the evidence."""
        return [*self.server.doubtful_rules, *self.evidence.warnings]

    def table(self, name: str, columns: Sequence[str] | None = None) -> Table:
        """Return a table, or some of its columns; what is kept is shared, and not to be changed.

        Raises:
            EvidenceError: it cannot be read.
        """
        if name == "snapshots" and self._sample is not None and isinstance(self.evidence, Evidence):
            return self.evidence.table(name, columns, of=self._sample)
        if name in _READ_AGAIN:
            return self.evidence.table(name, columns)
        if name not in self._kept:
            self._kept[name] = self.evidence.table(name)
        kept = self._kept[name]
        return {column: kept[column] for column in (kept if columns is None else columns)}

    @cached_property
    def counters(self) -> Counters:
        """The counters."""
        return Counters(self.table("counters"), self.server)

    @property
    def relations(self) -> Table:
        """The relations, with their sizes at both ends."""
        return self.table("relations")

    @cached_property
    def relation_names(self) -> list[str]:
        """A name for each of the relations."""
        return relation_names(self.relations)

    def check_whole(self) -> None:
        """Check that there are rows in the tables that a model begins with.

        Raises:
            EvidenceError: there are not, because the recording was cut short or a part is missing or damaged.
        """
        if isinstance(self.evidence, Evidence):
            check_observed(self.evidence)

    def nothing_seen(self) -> EvidenceError:
        """Return the error for an observation without an access of its database."""
        return nothing_seen(self.evidence)


def _smaller_sample(evidence: Evidence) -> BlockSample | None:
    """Return the blocks that are read where snapshots have too many rows; None where all are.

    A trace has one snapshot, which says what the pool held when it began.
    """
    rows, sampling = evidence.rows("snapshots"), evidence.meta.sampling
    if rows <= _MOST_ROWS or evidence.meta.source == "trace":
        return None
    # Of offsets drawn with the same seed the fewer are a part of the more.
    rate = BlockSample.from_meta(sampling).rate * _MOST_ROWS / rows
    return BlockSample.draw(rate, int(sampling.get("block_seed", 0)))


def observe(evidence: Path, steps: Steps | None = None) -> Observation | None:
    """Open a recording, or an exported trace with what lies beside it; None for a trace that others recorded.

    Args:
        steps: as of `Observation`.

    Raises:
        EvidenceError: it cannot be read, or does not say how large the pool was.
    """
    evidence = exported_trace(evidence) or evidence
    if evidence.is_file():
        check_trace(evidence)
        exported = ExportedTrace.open(evidence)
        return None if exported is None else Observation(exported, steps)
    opened = Evidence.open(evidence)
    if opened.meta.shared_buffers_blocks < _FEWEST_BLOCKS:
        raise EvidenceError(
            f"`{evidence}` does not give the size of shared_buffers",
            cause="the recording was cut before the server had answered",
            hint=f"record again: {on_server('pgsweep record', f'-o {shell_word(str(evidence))}')}",
        )
    return Observation(opened, steps)
