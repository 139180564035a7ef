"""Typed face of the Rust module; checked against the built module by stubtest."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, TypedDict, final, overload, type_check_only

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BULKREAD",
    "BULKWRITE",
    "DROP",
    "EXTENSION",
    "REPEAT",
    "STRATEGY_MASK",
    "UNCOUNTED",
    "VACUUM",
    "FileCache",
    "FileSpace",
    "NextAccesses",
    "ObjectIds",
    "Past",
    "PoolContents",
    "PoolReader",
    "ReadTimer",
    "RecordSplitter",
    "Rules",
    "Tracer",
    "__version__",
    "access_files",
    "both_caches",
    "build_profile",
    "check_tracing",
    "clock_law",
    "dense_ids",
    "drawn_accesses",
    "drop_page_cache",
    "mixture_weights",
    "mixture_weights_many",
    "page_cache",
    "path_likelihoods",
    "peek_relations",
    "postmaster_start_time",
    "replay",
    "replay_outcomes",
    "states_before",
    "timed_reads",
    "trace_event_cost_seconds",
]

__version__: str

STRATEGY_MASK: int
"""Bits of a replay's flags (core/src/trace.rs): the class of the access strategy,"""
BULKREAD: int
"""of which this is a scan of a table that is large for some pools,"""
BULKWRITE: int
"""COPY and the like,"""
VACUUM: int
"""VACUUM and ANALYZE;"""
REPEAT: int
"""the same backend already pins the page,"""
EXTENSION: int
"""the page is new,"""
DROP: int
"""no access: the page is dropped,"""
UNCOUNTED: int
"""an access of another database."""

def build_profile() -> str: ...

@final
class Rules:
    """How one major version (12 to 20) with given settings treats its buffers; equal where all is equal.

    Args:
        version: the server's major version.
        usage_cap: the highest usage_count; by default the version's, as all that follows of the policy. The
            usage counts of a one-bit clock (second chance) go to 1.
        admission: the usage_count of a page just read.
        hands: clock hands, 1 to 16; each goes round in its own part of the pool, misses take them in turn.
        free_list: whether dropped buffers are listed and taken before the sweep.
        max_backends: max_connections + autovacuum_worker_slots + max_worker_processes + max_wal_senders + 2;
            bounds the ring of a large scan from version 18 on.
        io_combine_limit_blocks: io_combine_limit in blocks of 8 kB (18 and later).
        effective_io_concurrency: the setting of that name (18 and later).
        vacuum_buffer_usage_limit_kb: the setting in kB (16 and later); 0 for no ring, None for the default.

    Raises:
        ValueError: a version is not known or a setting outside what the server accepts.
    """

    def __new__(
        cls,
        version: int,
        *,
        usage_cap: int | None = None,
        admission: int | None = None,
        hands: int | None = None,
        free_list: bool | None = None,
        max_backends: int = 136,
        io_combine_limit_blocks: int = 16,
        effective_io_concurrency: int = 16,
        vacuum_buffer_usage_limit_kb: int | None = None,
    ) -> Rules: ...
    @property
    def version(self) -> int: ...
    @property
    def usage_cap(self) -> int: ...
    @property
    def admission(self) -> int: ...
    @property
    def hands(self) -> int: ...
    @property
    def free_list(self) -> bool: ...
    def ring_buffers(self, strategy: int, size_blocks: int) -> int:
        """Return how many buffers a new ring has (strategy 1 BULKREAD, 2 BULKWRITE, 3 VACUUM); 0 is none."""

    def scan_uses_ring(self, table_blocks: int, size_blocks: int) -> bool:
        """Return whether a scan of a table of this many blocks uses a ring in a pool of this size."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class PoolContents:
    """What a pool holds at the start of a replay.

    Args:
        pages: ids of the resident pages, each once.
        usage_counts: their usage counts.
        buffers: where they lie, counted from 0 (bufferid - 1); without, they fill the pool from 0 on.
        hand: the buffer that the sweep looks at next.
    """

    def __new__(
        cls,
        pages: NDArray[np.uint32],
        usage_counts: NDArray[np.uint8],
        *,
        buffers: NDArray[np.uint32] | None = None,
        hand: int = 0,
    ) -> PoolContents: ...

@type_check_only
class ReplayCounts(TypedDict):
    """S sizes, W windows, G groups."""

    accesses: NDArray[np.uint64]  # [W] reads: hits and misses, no extensions
    extensions: NDArray[np.uint64]  # [W]
    misses: NDArray[np.uint64]  # [S, W]
    group_accesses: NDArray[np.uint64]  # [G] over all windows
    group_misses: NDArray[np.uint64]  # [S, G] over all windows
    hands: NDArray[np.uint32]  # [S] where each hand ended
    passes: NDArray[np.uint64]  # [S] full rounds of each hand since the beginning of the trace

@type_check_only
class ReplayOutcomes(TypedDict):
    outcomes: NDArray[np.uint8]  # by access: 0 hit, 1 miss, 2 extension, 3 drop
    evicted_pages: NDArray[np.uint32]  # by access: the page that went for the one that came, or 4294967295
    buffer_pages: NDArray[np.uint32]  # by buffer used so far, at the end; 4294967295 where empty
    buffer_usage_counts: NDArray[np.uint8]
    hand: int

@type_check_only
class PageTable(TypedDict):
    """Names of pages by their id."""

    spc: NDArray[np.uint32]
    db: NDArray[np.uint32]
    rel: NDArray[np.uint32]
    fork: NDArray[np.uint8]
    block: NDArray[np.uint32]

def replay(
    pages: NDArray[np.uint32],
    sizes_blocks: Sequence[int],
    rules: Rules,
    *,
    flags: NDArray[np.uint8] | None = None,
    owner_access: NDArray[np.uint64] | None = None,
    owner: NDArray[np.uint32] | None = None,
    owner_blocks: NDArray[np.uint32] | None = None,
    windows: NDArray[np.uint64] | None = None,
    groups: NDArray[np.uint32] | None = None,
    warm: Sequence[PoolContents | None] | None = None,
    threads: int | None = None,
) -> ReplayCounts:
    """Replay a trace through pools of many sizes and count their misses.

    Args:
        pages: dense id of each access's page.
        sizes_blocks: pool sizes in blocks of 8 kB, each at least 16.
        rules: the server's rules.
        flags: per access: bits 0-2 strategy (0 none, 1 BULKREAD if the table is large, 2 BULKWRITE,
            3 VACUUM); 8 the same backend already pins the page; 16 extension; 32 the page is
            dropped (no access); 64 moves the pool but is not counted.
        owner_access: ascending positions of all accesses with a strategy.
        owner: id of the ring's owner (scan or command) for each of these; the ring dies with the last.
        owner_blocks: by owner id, blocks of the table that it scans (decides whether BULKREAD applies).
        windows: ascending positions where windows begin, and where the last ends; accesses before the
            first are warm-up, those behind the last are left out. None is one window over all.
        groups: by page id, a group (such as a relation) to count by.
        warm: by size, what the pool holds at the start; None is an empty pool.
        threads: how many; None is one per processor.

    Raises:
        ValueError: a size is smaller than 16 blocks, or parts do not fit together.
    """

def replay_outcomes(
    pages: NDArray[np.uint32],
    size_blocks: int,
    rules: Rules,
    *,
    flags: NDArray[np.uint8] | None = None,
    owner_access: NDArray[np.uint64] | None = None,
    owner: NDArray[np.uint32] | None = None,
    owner_blocks: NDArray[np.uint32] | None = None,
    warm: PoolContents | None = None,
) -> ReplayOutcomes:
    """Replay a trace through one pool and return the outcome of every access.

    Arguments and errors as for `replay`.
    """

@type_check_only
class FileOutcomes(TypedDict):
    missing_pages: NDArray[np.uint8]  # by operation: pages of the block that a read did not find
    disk_pages: NDArray[np.uint32]  # by operation: pages read from disk, readahead included
    cached_pages: NDArray[np.uint8]  # by block: pages cached at the end
    refaulted_pages: int  # that came back after an eviction, from `refaulted_from` on
    active_pages: int  # on the active list at the end

def access_files(
    blocks: NDArray[np.uint32],
    files: NDArray[np.uint32],
    *,
    capacity_pages: int,
    readahead_pages: int,
    operations: NDArray[np.uint8] | None = None,
    streams: NDArray[np.uint32] | None = None,
    pages_per_block: int = 2,
    folio_order: int = 0,
    policy: str = "two-lists",
    gathered: NDArray[np.uint64] | None = None,
    resident: NDArray[np.uint32] | None = None,
    refaulted_from: int = 0,
) -> FileOutcomes:
    """Take blocks of files through Linux's page cache, one after the other.

    Args:
        blocks: number of each operation's block; blocks of all files are numbered one after the other.
        files: the first block of each file, ascending from 0, and where the last one ends.
        capacity_pages: size of the page cache, in pages of 4 kB, at least 256.
        readahead_pages: how far the kernel reads ahead at most (read_ahead_kb); 0 for no readahead.
        operations: 0 read, 1 write of the whole block, 2 drop; None: all are reads.
        streams: which open file a read goes through: readahead follows each for itself.
        pages_per_block: pages of 4 kB in a block.
        folio_order: the largest folio of the file system, as a power of two; 0: all are of one page.
        policy: `two-lists` (Linux without MGLRU), or `fifo` and `clock`, which bound MGLRU.
        gathered: ascending positions of operations before which the kernel gathers its statistics, which it
            does every 2 s; None: they are never old.
        resident: blocks that are cached at the beginning, in the order in which they were read.
        refaulted_from: the first operation whose refaulted pages are counted.

    Raises:
        ValueError: a block lies in no file, the cache is too small, or parts do not fit together.
    """

@final
class FileCache:
    """Linux's page cache behind a pool.

    Args:
        capacity_pages, readahead_pages, folio_order, policy, resident: as for `access_files`.
        writes: what the pool evicts dirty is written into it.
        pages_each: how many pages each one stands for, where a sample is simulated.

    Raises:
        ValueError: there is no such policy.
    """

    def __new__(
        cls,
        capacity_pages: int,
        readahead_pages: int,
        *,
        folio_order: int = 0,
        policy: str = "two-lists",
        resident: NDArray[np.uint32] | None = None,
        writes: bool = True,
        pages_each: float = 1.0,
    ) -> FileCache: ...

@final
class FileSpace:
    """Where blocks lie.

    Args:
        files: as for `access_files`.
        groups: the first block of each group (such as a relation), and where the last one ends.
        dirty: how likely a block of each group is dirty when the pool evicts it.
        gather_seconds: how often the kernel gathers its statistics.
    """

    def __new__(
        cls,
        files: NDArray[np.uint32],
        groups: NDArray[np.uint32],
        dirty: NDArray[np.float64],
        *,
        gather_seconds: float,
    ) -> FileSpace: ...

@type_check_only
class PageCacheReads(TypedDict):
    """What a page cache made of the pool's misses, once they were counted; G groups."""

    misses: NDArray[np.uint64]  # [G] of the pool
    waited: NDArray[np.uint64]  # [G] of these, those that found a page missing in the page cache
    disk_pages: NDArray[np.uint64]  # [G] pages read from disk with them, readahead included
    refaulted_pages: int  # that came back after an eviction
    blocks_before: int  # read and written before misses were counted
    twice_blocks: int  # of the pool, which are in the page cache too at the end

def both_caches(
    blocks: NDArray[np.uint32],
    seconds: NDArray[np.float64],
    space: FileSpace,
    pool_blocks: int,
    rules: Rules,
    behind: Sequence[FileCache],
    *,
    counted_from: int,
    seed: int,
    flags: NDArray[np.uint8] | None = None,
    owner_access: NDArray[np.uint64] | None = None,
    owner: NDArray[np.uint32] | None = None,
    owner_blocks: NDArray[np.uint32] | None = None,
    warm: PoolContents | None = None,
) -> list[PageCacheReads]:
    """Run accesses through a pool and the page caches behind it; return what each made of the misses.

    Args:
        blocks: of each access.
        seconds: when it is, ascending.
        space: where blocks lie.
        pool_blocks: size of the pool.
        rules: the server's rules.
        behind: the page caches; none knows of the others.
        counted_from: the first access whose misses are counted.
        seed: of what is dirty.
        flags, owner_access, owner, owner_blocks, warm: as for `replay`.

    Raises:
        ValueError: a block lies in no file, a cache is too small, or parts do not fit together.
    """

@final
class Past:
    """A trace over blocks of files, and an assumed past: the trace with other blocks (core/src/past.rs).

    Args:
        blocks: of each access.
        flags, owner_access, owner, owner_blocks: as for `replay`.
        seconds: when each access is, from the beginning.
        streams: which open file it goes through.
        forks: the first block of each fork, and where the last one ends; F forks, B blocks.
        visits: [B] how often each block was visited.
        new: [B] which blocks were made during the trace.
        rates: [R] in visits per second.
        weights: [F, R] how many blocks of each fork have each rate, in any unit.
        duration_seconds: of the trace.
        visit_gap_seconds: accesses to a block that lie closer belong to one visit.
        seed: of the rates that are drawn.

    Raises:
        ValueError: parts do not fit together.
    """

    def __new__(
        cls,
        blocks: NDArray[np.uint32],
        flags: NDArray[np.uint8],
        seconds: NDArray[np.float64],
        streams: NDArray[np.uint32],
        *,
        owner_access: NDArray[np.uint64],
        owner: NDArray[np.uint32],
        owner_blocks: NDArray[np.uint32],
        forks: NDArray[np.uint32],
        visits: NDArray[np.uint32],
        new: NDArray[np.bool_],
        rates: NDArray[np.float64],
        weights: NDArray[np.float64],
        duration_seconds: float,
        visit_gap_seconds: float,
        seed: int,
    ) -> Past: ...
    def residents(self, absent: NDArray[np.float64], most_blocks: int, *, seed: int) -> NDArray[np.uint32]:
        """Return blocks that a page cache holds before the past, in the order in which they were read.

        Args:
            absent: [F, R] how likely a block of each fork and rate is absent from the pool.
            most_blocks: size of the page cache.
            seed: of the draw.
        """

    def both_caches(
        self,
        space: FileSpace,
        pool_blocks: int,
        rules: Rules,
        behind: Sequence[FileCache],
        warm: PoolContents,
        *,
        turnovers: float,
        most_accesses: int,
        seed: int,
    ) -> list[PageCacheReads]:
        """Run the past and then the trace through both caches; misses of the trace are counted.

        Args:
            space, pool_blocks, rules, behind: as for the function `both_caches`.
            warm: what the pool holds at first.
            turnovers: how many blocks the past brings in, for each that the first page cache has room for.
            most_accesses: of the past.
            seed: of all draws.

        Raises:
            ValueError: parts do not fit together.
        """

@final
class ObjectIds:
    """Gives each object (a 64-bit name) the next number when it first appears."""

    def __new__(cls) -> ObjectIds: ...
    def __len__(self) -> int: ...
    def ids(self, objects: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Return the numbers of the next accesses' objects.

        Raises:
            ValueError: there are more than 4294967295 distinct objects.
        """

@final
class NextAccesses:
    """Finds the next access to the same object, going backwards through a trace in pieces.

    Args:
        objects: number of distinct objects; numbers are below it.
    """

    def __new__(cls, objects: int) -> NextAccesses: ...
    def piece(self, ids: NDArray[np.uint32], first: int) -> NDArray[np.int64]:
        """Return positions of next accesses, -1 for none, of the piece that begins at position `first`.

        Pieces come last one first.

        Raises:
            ValueError: a number is not below the count of objects.
        """

def dense_ids(
    spc: NDArray[np.uint32],
    db: NDArray[np.uint32],
    rel: NDArray[np.uint32],
    fork: NDArray[np.uint8],
    block: NDArray[np.uint32],
) -> tuple[NDArray[np.uint32], PageTable]:
    """Number pages densely in the order of first appearance; also return the table of their names.

    Raises:
        ValueError: the arrays differ in length.
    """

@type_check_only
class TraceTables(TypedDict):
    accesses: dict[str, NDArray[Any]]  # the columns of the evidence's tables of these names
    scans: dict[str, NDArray[Any]]
    drops: dict[str, NDArray[Any]]

@type_check_only
class PoolTable(TypedDict):
    """The used buffers at one moment, or a sample of them."""

    frame: NDArray[np.int32]  # from 1, as bufferid of pg_buffercache
    spc: NDArray[np.uint32]
    db: NDArray[np.uint32]
    rel: NDArray[np.uint32]
    fork: NDArray[np.uint8]
    block: NDArray[np.uint32]
    usage_count: NDArray[np.uint8]
    dirty: NDArray[np.bool_]
    pinned: NDArray[np.bool_]
    buffers: int
    used: int  # buffers that hold a page, in the sample or not
    zero: int  # of these at usage_count 0
    begin_ns: int
    end_ns: int
    hand: tuple[int, int, int] | None  # buffer looked at next (from 0), rounds, head of the free list or -1
    hand_settled: bool  # False: the hand is None this time, because no two readings of it agreed

@type_check_only
class PoolRelations(TypedDict):
    """The used buffers by relation and fork; columns are parallel."""

    spc: NDArray[np.uint32]
    db: NDArray[np.uint32]
    rel: NDArray[np.uint32]
    fork: NDArray[np.uint8]
    usage_counts: NDArray[np.int64]  # [n, 6] buffers at usage_count 0 to 5
    dirty: NDArray[np.int64]
    pinned: NDArray[np.int64]
    buffers: int  # of the pool, used or not
    begin_ns: int
    end_ns: int
    hand: tuple[int, int, int] | None  # as in PoolTable
    hand_settled: bool

@type_check_only
class PageCacheCounts(TypedDict):
    """One element a file."""

    size_bytes: NDArray[np.int64]  # -1: it vanished, or cannot be opened
    cached_bytes: NDArray[np.int64]  # 0 where there is an error
    dirty_bytes: NDArray[np.int64]  # changed, not on disk yet; -1 without cachestat, and for maps
    writeback_bytes: NDArray[np.int64]  # on their way to the disk; likewise
    evicted_bytes: NDArray[np.int64]  # evicted so recently that a read would activate them; likewise
    error: NDArray[np.int32]  # errno, 0 where all went well
    method: str  # cachestat or mincore

@type_check_only
class PageCacheMaps(PageCacheCounts):
    first_block: NDArray[np.int64]  # [n + 1] where each file's blocks begin in cached_pages
    cached_pages: NDArray[np.uint8]  # by block, how many of its pages are cached

@final
class PoolReader:
    """Reads a server's pool again and again, from its memory; what need be done only once is done here.

    It is bound to the process, not to its number. Positions of the hand that one reader returns never go
    backwards.

    Args:
        postmaster_pid: process id of its postmaster.
        version_num: as `server_version_num`, 12 to 19.
        start_time: when that postmaster started, in microseconds since 2000-01-01; another one is refused.

    Raises:
        RuntimeError: (what, hint): the layout of this server's memory is not known.
        OSError: its memory cannot be read, or the server ended or restarted meanwhile.
    """

    def __new__(
        cls, postmaster_pid: int, version_num: int, *, start_time: int | None = None
    ) -> PoolReader: ...
    def read(self, *, modulus: int = 1, offsets: Sequence[int] | None = None) -> PoolTable:
        """Read the used buffers, or a sample of them (pgsweep.evidence.sampling).

        Args:
            modulus: at which the taken blocks repeat.
            offsets: those whose (block + rel) modulo that is among these; None takes all.
        """

    def relations(self, *, threads: int | None = None) -> PoolRelations:
        """Count the buffers by relation; the server does nothing for it.

        Args:
            threads: how many; None is one per processor, at most 4. Where the system refuses threads, fewer
                do it.
        """

@type_check_only
class ReadHistogram(TypedDict):
    """Reads that were timed; one element a bucket, in order."""

    from_ns: NDArray[np.uint64]
    below_ns: NDArray[np.uint64]
    reads: NDArray[np.uint64]
    nanoseconds: NDArray[np.uint64]  # of all of them

@final
class ReadTimer:
    """Times how long sessions wait for reads while its probes are attached; they die with the process.

    Args:
        postmaster_pid: process id of the server's postmaster.
        attachment: `link`, `perf_event`, or `auto`.
        start_time: as for PoolReader.

    Attributes:
        function: whose time is counted: `WaitReadBuffers`, or `mdread` up to version 16.
        own_seconds: what timing adds to the time of a read as counted, and what it costs the process.

    Raises:
        RuntimeError: (what, hint): this kernel, server or user cannot.
        OSError: a system call failed.
    """

    def __new__(
        cls, postmaster_pid: int, *, attachment: str = "auto", start_time: int | None = None
    ) -> ReadTimer: ...
    @property
    def function(self) -> str: ...
    @property
    def own_seconds(self) -> tuple[float, float]: ...
    def attach(self) -> None: ...
    def detach(self) -> None: ...
    def histogram(self) -> ReadHistogram:
        """Return what was timed since this was made."""

@final
class Tracer:
    """Probes on a running server: they record every page access until `stop`, and die with the process.

    Args:
        postmaster_pid: process id of its postmaster.
        version_num: as `server_version_num`.
        databases: oids of the databases wanted (0: shared catalogs); empty for all.
        ring_bytes: size of the kernel's buffer, a power of two.
        attachment: `link`, `perf_event`, or `auto`.
        start_time: as for PoolReader.
        buffer_states: whether hits read the states of their buffers from the server's memory.

    Raises:
        RuntimeError: (what, hint): this kernel, server or user cannot.
        OSError: a system call failed.
    """

    def __new__(
        cls,
        postmaster_pid: int,
        version_num: int,
        *,
        databases: Sequence[int],
        ring_bytes: int,
        attachment: str,
        start_time: int | None = None,
        buffer_states: bool = True,
    ) -> Tracer: ...
    def poll(self, timeout_seconds: float) -> TraceTables | None:
        """Wait at most this long for a batch of decoded tables; None when there is none.

        Raises:
            OSError: reading the probes' events failed and ended early; `unread` says what that lost.
        """

    def stop(self) -> None: ...
    def lost(self) -> int: ...
    def unread(self) -> int:
        """Return the events that were not read because reading ended early; all of them after `stop`."""

    def counts(self) -> dict[str, int]: ...
    def reader_processor_seconds(self) -> float: ...
    def start_ns(self) -> int: ...
    def attachment(self) -> str: ...
    def probes(self) -> list[tuple[str, str, int, bool]]: ...

def trace_event_cost_seconds(attachment: str) -> float: ...
def check_tracing(postmaster_pid: int | None = None) -> None:
    """Find out, without putting a probe anywhere, whether this kernel and this server could be traced.

    Args:
        postmaster_pid: the server; None asks the kernel only.

    Raises:
        RuntimeError: (what, hint): this kernel, server or user cannot.
        OSError: the server cannot be looked at.
    """

def postmaster_start_time(postmaster_pid: int) -> int: ...
def peek_relations(postmaster_pid: int, version_num: int, *, threads: int | None = None) -> PoolRelations: ...
@overload
def page_cache(
    paths: Sequence[str | PathLike[str]],
    *,
    maps: Literal[False] = False,
    block_bytes: int = 8192,
    threads: int | None = None,
    method: str | None = None,
) -> PageCacheCounts: ...
@overload
def page_cache(
    paths: Sequence[str | PathLike[str]],
    *,
    maps: Literal[True],
    block_bytes: int = 8192,
    threads: int | None = None,
    method: str | None = None,
) -> PageCacheMaps:
    """Return how much of each file lies in the operating system's page cache, without touching it.

    A file's error is EPERM where the kernel would not answer truthfully: to whoever neither owns a file nor
    may write it, mincore(2) calls all of it resident.

    Args:
        paths: files.
        maps: list each block.
        block_bytes: size of these, a power of two.
        threads: how many; None is one per processor, at most 8.
        method: `cachestat` or `mincore`; by default the former where the kernel has it. Maps need the latter.

    Raises:
        ValueError: block_bytes or method is none.
    """

def drop_page_cache(paths: Sequence[str | PathLike[str]]) -> NDArray[np.int32]:
    """Ask the kernel to forget these files' pages; return each file's errno, 0 where all went well.

    Pages not written to disk yet stay: sync the files first.
    """

def timed_reads(
    paths: Sequence[str | PathLike[str]],
    files: Sequence[int],
    offsets: Sequence[int],
    *,
    block_bytes: int,
    depth: int,
    seconds: float,
) -> NDArray[np.float64]:
    """Read blocks past the page cache (O_DIRECT), `depth` at once; return the seconds of each, by beginning.

    It ends when all are read, or after that time and the reads then in flight.

    Args:
        paths: files, opened for reading only.
        files: of each block, the index of its file.
        offsets: where each begins.
        block_bytes: size of a block.
        depth: reads in flight, at most 64.
        seconds: of time.

    Raises:
        OSError: the file system refuses O_DIRECT, or a read failed.
        ValueError: seconds is not a time.
    """

def clock_law(
    rates: NDArray[np.float64], batch: NDArray[np.float64], *, usage_cap: int = 5, admission: int = 1
) -> NDArray[np.float64]: ...
def mixture_weights(
    likelihoods: NDArray[np.float64],
    multiplicity: NDArray[np.float64],
    *,
    start: NDArray[np.float64] | None = None,
    steps: int = 600,
    gain: float = 1e-4,
) -> tuple[NDArray[np.float64], float]: ...
def mixture_weights_many(
    likelihoods: NDArray[np.float64],
    multiplicities: NDArray[np.float64],
    start: NDArray[np.float64],
    *,
    steps: int = 60,
    gain: float = 1e-3,
) -> NDArray[np.float64]: ...
def path_likelihoods(
    counts: NDArray[np.int16],
    buffers: NDArray[np.int32],
    created: NDArray[np.bool_],
    weights: NDArray[np.float64],
    *,
    hands: NDArray[np.int64],
    pool: int,
    visits: NDArray[np.float64],
    turns: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
def states_before(
    first_seconds: NDArray[np.float64],
    rates: NDArray[np.float64],
    pass_seconds: NDArray[np.float64],
    gaps_seconds: NDArray[np.float64],
    batch: NDArray[np.float64],
    *,
    rounds: float,
    duration_seconds: float,
    seed: int,
    usage_cap: int = 5,
    admission: int = 1,
) -> NDArray[np.uint8]: ...
def drawn_accesses(
    visits: NDArray[np.float64],
    begins: NDArray[np.int64],
    batches: NDArray[np.float64],
    addresses: NDArray[np.uint32],
    *,
    count: int,
    seconds: float,
    seed: int,
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Draw visits to classes of pages at equal distances in time; return address and seconds of each access.

    Args:
        visits: to the pages of each class together, in any unit.
        begins: the first page of each class, and the end of the last, shape (classes + 1).
        batches: probabilities that a visit brings 1, 2, 3, 4, and 5 or more accesses, shape (classes, 5).
        addresses: of each page.
        count: of visits.
        seconds: that they take.
        seed: the same one gives the same accesses.

    Raises:
        ValueError: an array has not its shape, or no such values.
    """

@final
class RecordSplitter:
    """Finds where records end in the text formats of COPY, by the server's own rules (copyfromparse.c).

    The input comes in blocks of any length; a splitter begins at the start of a record.

    Args:
        rule: `csv`, `text` (COPY's text format), or `lines` (every terminator ends a record).
        quote: of CSV.
        escape: what keeps a quote of CSV from ending the field; the quote itself by default.
        terminator: last byte of a line end.
    """

    def __new__(
        cls,
        rule: Literal["csv", "text", "lines"],
        *,
        quote: int = ...,
        escape: int = ...,
        terminator: int = ...,
    ) -> RecordSplitter: ...
    def feed(self, block: bytes) -> tuple[int, int, int]:
        """Return the end of the last record that ends in the block, and the records and lines up to there.

        The end is -1 where none ends in it. The numbers count from the last end before.
        """

    def ends(self, block: bytes) -> NDArray[np.uint64]:
        """Return where each record that ends in the block ends."""

    @property
    def is_open(self) -> bool:
        """Whether the bytes so far end within quotes or after an escape."""
