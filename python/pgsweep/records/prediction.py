"""A recording, and what is predicted from it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pgsweep.records.common import Provenance
from pgsweep.records.reasons import Reason

Level = Literal["reliable", "rough", "refused"]
LEVELS: Final[tuple[Level, ...]] = ("reliable", "rough", "refused")
"""From the best to the worst."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What the evidence itself shows: measured, not predicted."""

    shared_buffers_bytes: int
    miss_ratio: float
    accesses: int
    seconds: float

    @property
    def accesses_per_second(self) -> float:
        """Pages that were accessed in one second."""
        return self.accesses / max(self.seconds, 1e-9)


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The predicted miss ratio at one size, with its 90% interval.

    Attributes:
        low, high: of the load; from a trace, of any stretch of it that is as long as the one recorded.
        stretch_low, stretch_high: of the stretch that was recorded itself (traces).
    """

    shared_buffers_bytes: int
    miss_ratio: float
    low: float
    high: float
    stretch_low: float | None = None
    stretch_high: float | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How far the prediction may be trusted, and every reason, in words.

    Attributes:
        level: `reliable`; `rough`, where the interval or the method asks for caution; `refused`, where there
            is not a prediction, and so not a point of a curve.
        reasons: those that decided the level come first.
    """

    level: Level
    reasons: list[Reason]

    @property
    def sentences(self) -> list[str]:
        """The reasons in words."""
        return [reason.text for reason in self.reasons]


class NoEviction(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was evicted while the pool was observed: the prediction is what was measured, where it holds.

    Attributes:
        used_bytes: most that held pages at once: measured.
        removable_bytes: what can be taken away without a further miss.
        known_from_bytes: smallest size for which the miss ratio is known.
        known_below_bytes: smallest larger size for which nothing is known; null where all are known.
        filling_bytes: by how much the pool grew in the second half of the recording, where it is still
            filling; else 0.
        unknown_bytes: requested sizes for which nothing is known; they have no point.
    """

    used_bytes: int
    removable_bytes: int
    known_from_bytes: int
    known_below_bytes: int | None
    filling_bytes: int
    unknown_bytes: list[int]


class DiskPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted of the page cache behind the pool at one size; `low` and `high` bound 90%.

    Attributes:
        page_cache_bytes: memory that is left for cached files; at least `page_cache_low_bytes`.
        page_tables_bytes: what the processes' page tables take for shared memory.
        page_cache_hit_ratio: of the pool's misses, those found in the page cache; null where they are too
            few to say; the bounds follow from their number.
        disk_reads_per_second: the others, at the load of the evidence.
        disk_bytes_per_second: read from disk for them, readahead included.
        held_twice_bytes: of the pool's blocks, those that the page cache holds too.
        shared_memory_bytes: the pool and what else the server shares; null, as all below, in earlier results.
        page_tables_most_bytes: what page tables take at most without huge pages: each process has touched all
            of the shared memory.
        wait_ratio: seconds that all sessions together wait for reads in one second (`costs`).
        saved_seconds_per_gb: by how many seconds they wait less in one second for each gigabyte that is added
            up to the next larger size; less than 0 where they wait longer; null at the largest.
    """

    shared_buffers_bytes: int
    page_cache_bytes: int
    page_cache_low_bytes: int
    page_tables_bytes: int
    page_cache_hit_ratio: float | None
    page_cache_hit_low: float
    page_cache_hit_high: float
    disk_reads_per_second: float
    disk_reads_low: float
    disk_reads_high: float
    disk_bytes_per_second: float
    disk_bytes_low: float
    disk_bytes_high: float
    held_twice_bytes: int
    held_twice_low_bytes: int
    held_twice_high_bytes: int
    shared_memory_bytes: int | None = None
    page_tables_most_bytes: int | None = None
    wait_ratio: float | None = None
    wait_low: float | None = None
    wait_high: float | None = None
    saved_seconds_per_gb: float | None = None
    saved_seconds_per_gb_low: float | None = None
    saved_seconds_per_gb_high: float | None = None


class ThroughputPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Transactions per second at one size, divided by those of today; `low` and `high` bound 90%."""

    shared_buffers_bytes: int
    ratio: float
    low: float
    high: float


class DiskLatency(msgspec.Struct, frozen=True, kw_only=True):
    """How long random reads of 8 kB from the disk took while a number of them was in flight: measured.

    Attributes:
        depth: that number, besides the server's own reads.
        seconds: of one read, the mean.
        error_seconds: standard error of the mean.
        reads: that were timed.
    """

    depth: int
    seconds: float
    error_seconds: float
    reads: int


class TimedReads(msgspec.Struct, frozen=True, kw_only=True):
    """How long sessions waited for single reads from the server's files, page cache and disk alike: measured.

    Attributes:
        reads: that were timed.
        seconds: of the recording in which they were.
        mean_seconds: of waiting for one of them.
        median_seconds, p90_seconds, p99_seconds, p999_seconds: that 50, 90, 99 and 99.9% did not exceed.
    """

    reads: int
    seconds: float
    mean_seconds: float
    median_seconds: float
    p90_seconds: float
    p99_seconds: float
    p999_seconds: float


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """What disk reads make of the throughput.

    Attributes:
        transactions_per_second: measured; null, as the next four, where there is no prediction.
        sessions: connected, on average: measured.
        processor_seconds: of a transaction: measured.
        disk_read_seconds: that a session waits for one read from disk: measured, but for the number of reads.
        copy_seconds: of a read from the page cache: measured on the host.
        disk_depth: sessions that wait for a disk read at once, on average, today: measured, but for the
            number of reads; null where there is no prediction, and in results of earlier versions.
        disk_latencies: by depth, ascending; none where they were not measured, and then a read is assumed to
            take as long at each depth.
        disk_most_reads_per_second: that the disk was seen to serve, those of the server included; null where
            it was not seen to level off.
        points: by size, as ratios to today; none where it is refused.
        reasons: sentences; why it is refused, or what it holds for.
        against_same_memory: where the memory or the sessions are others than today's, the same as ratios to
            today's size with these; none otherwise.
    """

    transactions_per_second: float | None = None
    sessions: float | None = None
    processor_seconds: float | None = None
    disk_read_seconds: float | None = None
    copy_seconds: float | None = None
    disk_depth: float | None = None
    disk_latencies: list[DiskLatency] = []
    disk_most_reads_per_second: float | None = None
    points: list[ThroughputPoint]
    reasons: list[str]
    against_same_memory: list[ThroughputPoint] = []

    def by_size(self) -> list[ThroughputPoint]:
        """Return the points as ratios to today's size with the same memory and sessions."""
        return self.against_same_memory or self.points


class RelationReads(msgspec.Struct, frozen=True, kw_only=True):
    """What one relation reads at one size; `low` and `high` bound 90%.

    Attributes:
        misses_per_second: of the pool, at the load of the evidence.
        disk_reads_per_second: of these, those that wait for the disk.
    """

    shared_buffers_bytes: int
    misses_per_second: float
    disk_reads_per_second: float
    disk_reads_low: float
    disk_reads_high: float


class RelationCurve(msgspec.Struct, frozen=True, kw_only=True):
    """What one relation reads at each size.

    Attributes:
        name: with its schema; `other relations` for all that are not named.
        points: by size, ascending.
    """

    name: str
    points: list[RelationReads]


class ReadCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What one read takes that the pool does not serve.

    Attributes:
        disk_read_seconds: that a session waits for one read from disk.
        copy_seconds: for one of 8 kB from the page cache.
        disk_read_kind, copy_kind: whether it was measured; `mean` where what was measured is the mean of all
            misses, whatever served them.
    """

    disk_read_seconds: float
    disk_read_kind: Literal["measured", "assumed"]
    copy_seconds: float
    copy_kind: Literal["measured", "assumed", "mean"]


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """How the memory was used when the evidence was recorded: measured; the parts add up to all of it.

    Attributes:
        memory_bytes: all there was to share.
        shared_memory_bytes: of the server, as much as was touched.
        page_tables_bytes: of the server's processes.
        page_tables_saved_bytes: of these, what huge pages would save: all that map shared memory, as
            `hugepages` predicts it; each process is assumed to have 150 kB of others where that was not
            recorded. 0 where it lies in huge pages already.
        processes: of the server.
        private_bytes: private memory of these; null where it was not recorded, and then part of `rest_bytes`.
        rest_bytes: other programs, the kernel, and what it keeps free.
        page_cache_bytes: cached files, and what was free for them.
        huge_pages: the shared memory lay in huge pages.
    """

    memory_bytes: int
    shared_memory_bytes: int
    page_tables_bytes: int
    page_tables_saved_bytes: int
    processes: int
    private_bytes: int | None
    rest_bytes: int
    page_cache_bytes: int
    huge_pages: bool


class MemoryPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Memory as one budget: the pool, and the page cache that gets the rest.

    Attributes:
        memory_bytes: all there is to share.
        memory_from: where that comes from: `host`, `cgroup` (a limit), `asked` (--ram).
        other_bytes: taken by neither shared memory nor cached files: measured, or assumed.
        other_assumed: it is assumed.
        measured_disk_bytes_per_second: what the server read from disk; null where that is not known.
        simulated_disk_bytes_per_second: the same as simulated, at today's size; null where none is measured.
        policy: `two-lists`, or `mglru`, which is bounded by FIFO and CLOCK.
        points: by size; sizes that leave no page cache have none.
        reasons: sentences on how far it may be trusted.
        throughput: null in results of earlier versions.
        relations: those with the most disk reads, and the others together.
        costs: what reads take; null, as `use`, in results of earlier versions.
        measured_twice_bytes: of the pool's blocks, those that the page cache held too at the end of the
            recording; null where that was not recorded.
        timed_reads: null where reads were not timed one by one.
        use: what the memory was used for when the evidence was recorded.
    """

    memory_bytes: int
    memory_from: Literal["host", "cgroup", "asked"]
    other_bytes: int
    measured_disk_bytes_per_second: float | None
    policy: Literal["two-lists", "mglru"]
    points: list[DiskPoint]
    reasons: list[str]
    throughput: Throughput | None = None
    simulated_disk_bytes_per_second: float | None = None
    relations: list[RelationCurve] = []
    costs: ReadCosts | None = None
    measured_twice_bytes: int | None = None
    timed_reads: TimedReads | None = None
    use: MemoryUse | None = None
    other_assumed: bool = False


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was asked for with --what-if; nobody has observed it.

    Attributes:
        text: as it was asked.
        kind: always `assumed`.
        assumption: a sentence on what is taken to happen.
    """

    text: str
    kind: Literal["assumed"] = "assumed"
    assumption: str


class ChangedPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The curve with all changes that were asked for.

    Attributes:
        accesses_per_second: of the database, with the changes.
        points: by size; none where it is refused.
        unknown_bytes: sizes at which nothing is known.
        verdict: at best `rough` where the load is changed, since nothing shows whether the assumptions hold.
        memory: what the page cache makes of the misses; null where the evidence does not allow to say.
    """

    accesses_per_second: float
    points: list[CurvePoint]
    unknown_bytes: list[int] = []
    verdict: Verdict
    memory: MemoryPrediction | None = None


class ScannedRelation(msgspec.Struct, frozen=True, kw_only=True):
    """A relation that sequential scans read, and up to which size of the pool they do so through a ring.

    Attributes:
        relation_bytes: its size when it was observed.
        access_share: of its scans among all accesses of the database.
        ring_below_bytes: in a pool smaller than that its scans go through a ring; in others they displace
            other pages, and find their own where the next scan comes soon enough.
    """

    name: str
    relation_bytes: int
    access_share: float
    ring_below_bytes: int


class PredictResult(msgspec.Struct, frozen=True, kw_only=True):
    """A curve of miss ratios over sizes of shared_buffers.

    Attributes:
        unknown_bytes: requested sizes at which the interval is too wide to be shown; they have no point.
        no_eviction: where nothing was evicted, what follows from that; else null.
        memory: what the page cache makes of the misses; null where the evidence does not allow to say.
        what_if: changes that were asked for; all else in this record is without them, but for `changed`.
        changed: the curve with all of them; null where none was asked for.
        scans: relations of which scans have a part in the accesses, the largest part first.
    """

    schema: str = "pgsweep.predict/1"
    source: str
    observed: Observed
    points: list[CurvePoint]
    verdict: Verdict
    unknown_bytes: list[int] = []
    no_eviction: NoEviction | None = None
    memory: MemoryPrediction | None = None
    what_if: list[WhatIf] = []
    changed: ChangedPrediction | None = None
    scans: list[ScannedRelation] = []
    provenance: Provenance | None = None


class RecordResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording gathered.

    Attributes:
        passed_over: the sources that `auto` would have taken first, each with the reason why it could not.
    """

    schema: str = "pgsweep.record/1"
    path: str
    source: str
    seconds: float
    shared_buffers_bytes: int
    snapshots: int
    accesses: int
    lost_events: int
    bytes_written: int
    ended_by: str
    expected_overhead_ratio: float | None
    measured_overhead_ratio: float | None
    warnings: list[str]
    passed_over: list[str] = []
    provenance: Provenance | None = None


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that would be done to the server: a statement, a system call, a setting."""

    what: str
    when: str
    text: str


class RecordPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording would do, step by step; nothing was done.

    Attributes:
        passed_over: the sources that `auto` would have taken first, each with the reason why it could not.
        refused: why this role would not get a recording, and what to do; empty where it would.
    """

    schema: str = "pgsweep.plan/1"
    source: str
    server: str
    output: str
    steps: list[PlanStep]
    passed_over: list[str] = []
    refused: list[str] = []


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """A trace written in another format.

    Attributes:
        accesses: that were written: all that the trace has.
        counted: of these, what the database counts as hits and misses, as a prediction does. The others are
            of new pages, of shared catalogs, of other databases, or of the replay of a standby.
        objects: blocks that were accessed.
    """

    schema: str = "pgsweep.export/1"
    path: str
    mapping_path: str
    start_path: str
    accesses: int
    counted: int
    objects: int
    bytes_written: int
    warnings: list[str]
