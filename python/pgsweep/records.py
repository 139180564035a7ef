"""The typed results that features return and `ui` shows: they are the JSON schema.

Base units everywhere: bytes, seconds, blocks, ratios between 0 and 1. A record whose name ends in `Result`
carries a `schema` field; within one schema number fields are only ever added.
"""

from __future__ import annotations

import msgspec


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What made a result: versions, machine and command line (without passwords)."""

    pgsweep_version: str
    native_build: str
    created_at: str
    command: str
    kernel: str
    architecture: str
    cpus: int
    memory_bytes: int
    python_version: str


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What the evidence itself shows: measured, not predicted."""

    shared_buffers_bytes: int
    miss_ratio: float
    accesses: int
    seconds: float


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted miss ratio at one size, with its 90 % interval."""

    shared_buffers_bytes: int
    miss_ratio: float
    low: float
    high: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the prediction may be used, and every reason for caution, in words."""

    usable: bool
    reasons: list[str]


class PredictResult(msgspec.Struct, frozen=True, kw_only=True):
    """A curve of miss ratios over sizes of shared_buffers."""

    schema: str = "pgsweep.predict/1"
    source: str
    observed: Observed
    points: list[CurvePoint]
    verdict: Verdict
    provenance: Provenance | None = None


class RecordResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording gathered."""

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
    provenance: Provenance | None = None


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that would be done to the server: a statement, a system call, a setting."""

    what: str
    when: str
    text: str


class RecordPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording would do, step by step; nothing of it was done."""

    schema: str = "pgsweep.plan/1"
    source: str
    server: str
    output: str
    steps: list[PlanStep]


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """A trace written in another format."""

    schema: str = "pgsweep.export/1"
    path: str
    mapping_path: str
    accesses: int
    objects: int
    bytes_written: int
    warnings: list[str]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted miss ratio with its 90 % interval."""

    miss_ratio: float
    low: float
    high: float


class DemoRow(msgspec.Struct, frozen=True, kw_only=True):
    """One size of one workload: measured beside both predictions.

    `measured_standard_error` tells how well the truth itself is known, `measured_settled` whether the pool
    had come to rest before it was counted.
    """

    shared_buffers_bytes: int
    measured_miss_ratio: float
    trace: Interval | None
    snapshots: Interval | None
    measured_standard_error: float | None = None
    measured_settled: bool | None = None
    measured_accesses: int | None = None
    measured_seconds: float | None = None


class DemoWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of the demo with its errors (as ratios, not percent)."""

    name: str
    observed_shared_buffers_bytes: int
    rows: list[DemoRow]
    trace_mean_abs_error: float | None
    trace_max_abs_error: float | None
    snapshots_mean_abs_error: float | None
    snapshots_max_abs_error: float | None
    title: str = ""
    trace_within_interval_ratio: float | None = None
    snapshots_within_interval_ratio: float | None = None
    trace_verdict: Verdict | None = None
    snapshots_verdict: Verdict | None = None
    trace_evidence: str | None = None
    snapshots_evidence: str | None = None


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole demo: where it ran, and every workload."""

    schema: str = "pgsweep.demo/1"
    server_version: str
    database_bytes: int
    machine: str
    seconds: float
    notes: list[str]
    workloads: list[DemoWorkload]
    provenance: Provenance | None = None


class ProveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One size: a real server's miss ratio of the traced accesses, the simulator's, and the prediction."""

    shared_buffers_bytes: int
    measured_miss_ratio: float
    simulated_miss_ratio: float
    predicted: Interval
    accesses: int


class ProveResult(msgspec.Struct, frozen=True, kw_only=True):
    """A trace replayed through a real server at several sizes; errors are ratios, not percent."""

    schema: str = "pgsweep.prove/1"
    evidence: str
    observed_shared_buffers_bytes: int
    server_version: str
    machine: str
    seconds: float
    notes: list[str]
    rows: list[ProveRow]
    mean_abs_error: float
    max_abs_error: float
    simulator_max_abs_error: float
    within_interval_ratio: float
    verdict: Verdict | None = None
    provenance: Provenance | None = None


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that pgsweep can or cannot do with a server.

    `area` is `server` (what the session may do) or `host` (what this machine allows). `available` is null
    where it cannot be told. `enable` is the command that makes it available, where there is one. `needed_for`
    names commands of pgsweep, with their options.
    """

    name: str
    area: str
    available: bool | None
    why: str
    enable: str | None
    needed_for: list[str]


class DoctorServer(msgspec.Struct, frozen=True, kw_only=True):
    """The server that was asked, as the session sees it."""

    version: str
    version_num: int
    database: str
    role: str
    superuser: bool
    in_recovery: bool
    shared_buffers_bytes: int
    relations: int
    databases: int


class DoctorHost(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that pgsweep runs on; the server's process where it runs here too."""

    user: str
    machine: str
    memory_bytes: int
    huge_pages_total: int | None
    huge_pages_free: int | None
    huge_page_bytes: int | None
    postmaster_pid: int | None
    memory_limit_bytes: int | None
    memory_limit_used_bytes: int | None


class DoctorResult(msgspec.Struct, frozen=True, kw_only=True):
    """What can be done with a server from here, and how to get what cannot; without a password anywhere."""

    schema: str = "pgsweep.doctor/1"
    target: str
    server: DoctorServer | None
    host: DoctorHost
    abilities: list[Ability]
    provenance: Provenance | None = None


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be looked at, why, and the command that would allow it, if there is one."""

    what: str
    why: str
    enable: str | None = None


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """The buffer pool as a whole; `usage_counts` are used buffers at usage_count 0 to 5."""

    size_bytes: int
    used_bytes: int
    unused_bytes: int
    dirty_bytes: int
    pinned_bytes: int
    usage_counts: list[int]


class CacheRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One relation (all its forks), or several rolled up, in both caches.

    Attributes:
        database: empty for shared catalogs.
        kind: table, index, TOAST table, materialized view, sequence; `unknown` for buffers whose relation no
            catalog names; otherwise what was rolled up.
        size_bytes: of its files; null where it could not be read.
        page_cache_bytes: resident in the operating system's page cache; null where that cannot be seen, as
            are the next two.
        both_bytes: blocks that lie in the buffer pool and, whole, in the page cache too.
        neither_bytes: what would come from disk.
        usage_counts: buffers at usage_count 0 to 5.
        table_schema: with `table`, the table that an index or TOAST relation serves; else its own name.
        root_schema: with `root`, the topmost partitioned table of a partition; else the table's name.
        relations: how many relations the row stands for.
    """

    database: str
    schema: str
    relation: str
    kind: str
    size_bytes: int | None
    shared_buffers_bytes: int
    page_cache_bytes: int | None
    both_bytes: int | None
    neither_bytes: int | None
    dirty_bytes: int
    pinned_bytes: int
    usage_counts: list[int]
    table_schema: str = ""
    table: str = ""
    root_schema: str = ""
    root: str = ""
    relations: int = 1


class CacheMap(msgspec.Struct, frozen=True, kw_only=True):
    """Where a relation's blocks lie, in order: each cell counts the blocks of one stretch of the main fork.

    A block that is resident only in half counts as not resident.
    """

    database: str
    schema: str
    relation: str
    blocks: int
    pool_only: list[int]
    page_cache_only: list[int]
    both: list[int]
    neither: list[int]


class CacheResult(msgspec.Struct, frozen=True, kw_only=True):
    """Who is in which cache: measured, at one moment.

    Attributes:
        by: what a row is: relation, table, index, schema, partition-root or database.
        relations: in descending order of bytes in the pool, then in the page cache.
        total: all of them, also those that `top` leaves out.
        pool_source: peek (the server's memory was read) or sql (pg_buffercache).
        page_cache_method: cachestat or mincore; null where the page cache cannot be seen.
        missing: what could not be looked at.
    """

    schema: str = "pgsweep.cache/1"
    server_version: str
    database: str
    block_size_bytes: int
    by: str
    pool_source: str
    page_cache_method: str | None
    at: str
    seconds: float
    pool: PoolState
    total: CacheRelation
    relations: list[CacheRelation]
    map: CacheMap | None = None
    missing: list[Missing] = []
    provenance: Provenance | None = None


class TopRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One relation (all its forks) at one moment, as in CacheRelation.

    Attributes:
        change_bytes_per_second: how fast its part of the pool grows or shrinks; null at the first look.
        page_cache_bytes: as of the last look at the page cache, which is older than the pool's; null where it
            cannot be seen, as are `both_bytes` and, at times, `size_bytes`.
    """

    database: str
    schema: str
    relation: str
    kind: str
    shared_buffers_bytes: int
    change_bytes_per_second: float | None
    usage_counts: list[int]
    dirty_bytes: int
    pinned_bytes: int
    size_bytes: int | None
    page_cache_bytes: int | None
    both_bytes: int | None


class TopRates(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's counters gained between two readings, by second; of all databases together.

    Attributes:
        seconds: between the readings.
        hit_ratio: hits by hits and reads; null where there were neither.
        allocations_per_second: buffers given out (buffers_alloc): for reads, for new pages.
        evictions_per_second: null before PostgreSQL 16, which does not count them.
        hand_buffers_per_second: how fast the clock hand moves; null where the server's memory is not read.
    """

    seconds: float
    hit_ratio: float | None
    hits_per_second: float
    reads_per_second: float
    allocations_per_second: float
    evictions_per_second: float | None
    transactions_per_second: float
    hand_buffers_per_second: float | None


class TopWait(msgspec.Struct, frozen=True, kw_only=True):
    """What some active backends do: wait for an event (`IO:DataFileRead`), or run."""

    event: str
    backends: int


class TopBackends(msgspec.Struct, frozen=True, kw_only=True):
    """Client backends but our own; `hidden` are those of which this role may not see the state."""

    total: int
    active: int
    idle: int
    idle_in_transaction: int
    hidden: int
    max_connections: int
    waits: list[TopWait]


class TopPageCache(msgspec.Struct, frozen=True, kw_only=True):
    """All relations in the page cache, as looked at some seconds ago."""

    method: str
    size_bytes: int
    page_cache_bytes: int
    both_bytes: int
    neither_bytes: int
    age_seconds: float


class TopView(msgspec.Struct, frozen=True, kw_only=True):
    """Which relations are wanted, and in which order.

    Attributes:
        sort: one of `pgsweep.live.SORTS`.
        filter: part of a name as shown, in either case; empty for all.
        limit: at most so many; null for all.
    """

    sort: str = "pool"
    reverse: bool = False
    filter: str = ""
    limit: int | None = None


class TopSample(msgspec.Struct, frozen=True, kw_only=True):
    """Both caches and the load on them at one moment: measured.

    Attributes:
        pool_source: peek (the server's memory was read) or sql (pg_buffercache).
        look_seconds: how long looking at the pool took; of a backend's time where the source is sql.
        backend_share: share of one backend's time that all of our statements took so far.
        interval_seconds: from one look to the next.
        held_back: that is longer than asked for, so that looking costs little.
        page_cache: null where it cannot be seen, or has not been looked at yet.
        rates: null at the first reading.
        relations: those wanted, in the order wanted.
        relations_found: how many there were before `limit`.
    """

    schema: str = "pgsweep.top/1"
    server_version: str
    database: str
    block_size_bytes: int
    pool_source: str
    at: str
    look_seconds: float
    backend_share: float
    interval_seconds: float
    held_back: bool
    pool: PoolState
    page_cache: TopPageCache | None
    rates: TopRates | None
    backends: TopBackends
    relations: list[TopRelation]
    relations_found: int
    missing: list[Missing] = []
    provenance: Provenance | None = None


class FootprintRun(msgspec.Struct, frozen=True, kw_only=True):
    """One execution as the server itself reports it: EXPLAIN (ANALYZE, BUFFERS).

    `shared_read_seconds` is the time spent on reads; null where track_io_timing is off.
    """

    planning_seconds: float
    execution_seconds: float
    rows: int
    shared_hit_blocks: int
    shared_read_blocks: int
    shared_dirtied_blocks: int
    shared_written_blocks: int
    temp_read_blocks: int
    temp_written_blocks: int
    planning_hit_blocks: int
    planning_read_blocks: int
    shared_read_seconds: float | None = None


class FootprintChange(msgspec.Struct, frozen=True, kw_only=True):
    """What one run brought into each cache of a relation and pushed out; null where it cannot be seen.

    Blocks are stretches of the main fork: [first, how many].
    """

    shared_buffers_in_bytes: int
    shared_buffers_out_bytes: int
    page_cache_in_bytes: int | None
    page_cache_out_bytes: int | None
    shared_buffers_in_blocks: list[tuple[int, int]]
    page_cache_in_blocks: list[tuple[int, int]] | None


class FootprintRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One relation (all its forks): what lay in the caches before, and what each run changed."""

    schema: str
    relation: str
    kind: str
    size_bytes: int | None
    shared_buffers_before_bytes: int
    page_cache_before_bytes: int | None
    runs: list[FootprintChange]


class FootprintResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one statement brings into each cache: measured.

    Attributes:
        cold: both caches were emptied before (a private server).
        runs: the first run and its repetitions, in order.
        relations: those that changed, most bytes first.
        plan: of the first run, as EXPLAIN prints it.
        notes: what else must be known, in words.
    """

    schema: str = "pgsweep.footprint/1"
    server_version: str
    database: str
    statement: str
    cold: bool
    pool_source: str
    sees_page_cache: bool
    shared_buffers_bytes: int
    runs: list[FootprintRun]
    relations: list[FootprintRelation]
    plan: list[str]
    notes: list[str] = []
    missing: list[Missing] = []
    provenance: Provenance | None = None


class MemoryProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one process of the server, measured.

    Attributes:
        pid: on this host.
        server_pid: as the server knows it, in a container another number.
        kind: as `backend_type` of pg_stat_activity; `postmaster`; `unknown` for a process that came or went.
        user: of the database; null for background processes, and where the role may not see it.
        query: shortened; null where the role may not see it.
        private_bytes: anonymous memory, pages shared since the fork divided by their sharers (Pss_Anon); null
            where it may not be read, see `why`.
        page_tables_bytes: VmPTE.
        cost_bytes: what would come back if the process ended: private memory and page tables.
        shared_touched_bytes: shared memory in ordinary pages that it ever touched (RssShmem), which others
            touch too.
        huge_pages_bytes: shared memory in huge pages that it has mapped (HugetlbPages).
        rss_bytes: what `ps` and `top` show.
        method: how private memory was read: smaps_rollup, pagemap or smaps.
        own: the session of pgsweep itself.
    """

    pid: int
    server_pid: int
    kind: str
    user: str | None
    database: str | None
    application: str | None
    state: str | None
    query: str | None
    private_bytes: int | None
    page_tables_bytes: int
    cost_bytes: int | None
    shared_touched_bytes: int | None
    huge_pages_bytes: int | None
    swap_bytes: int
    rss_bytes: int
    method: str
    own: bool = False
    why: str | None = None


class MemoryCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection costs, private memory and page tables: client backends without pgsweep's own."""

    connections: int
    mean_bytes: int
    p95_bytes: int
    worst_bytes: int
    worst_pid: int
    private_mean_bytes: int
    page_tables_mean_bytes: int
    rss_mean_bytes: int


class MemoryTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What the server costs the host: shared memory once, private memory and page tables of each process.

    Attributes:
        shared_memory_bytes: what the kernel has allocated of it.
        shared_memory_size_bytes: what has been promised; null where the mapping cannot be seen.
        shared_memory_method: `segment` (its blocks were counted), `pss` (at least so much: the shares of the
            processes that run),
            `huge pages` (set aside whole), `size` (at most so much).
        real_bytes: the sum; null where a part may not be read.
        rss_bytes: sum of RSS, which counts shared memory once a process.
    """

    shared_memory_bytes: int | None
    shared_memory_size_bytes: int | None
    shared_memory_method: str
    private_bytes: int | None
    page_tables_bytes: int
    swap_bytes: int
    real_bytes: int | None
    rss_bytes: int


class MemoryHost(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the host, and the limit of the server's memory cgroup."""

    memory_bytes: int
    available_bytes: int | None
    page_tables_bytes: int
    page_cache_bytes: int
    limit_bytes: int | None
    limit_used_bytes: int | None
    swap_bytes: int = 0


class MemoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of every process of the server: measured, at one moment.

    Attributes:
        processes: the dearest first; `top` may have left out others.
        hidden: how many were left out.
        connections: client backends, pgsweep's own not counted.
        cost: null where there are no other connections, or their memory may not be read.
    """

    schema: str = "pgsweep.memory/1"
    server_version: str
    database: str
    at: str
    seconds: float
    max_connections: int
    huge_pages: bool | None
    connections: int
    cost: MemoryCost | None
    totals: MemoryTotals
    host: MemoryHost
    processes: list[MemoryProcess]
    hidden: int = 0
    missing: list[Missing] = []
    provenance: Provenance | None = None


class KernelSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of the kernel that matters to a database host.

    Attributes:
        good: no change is recommended.
        recommendation: null where it is good.
        source: who says so.
        certainty: `documented` (PostgreSQL's or the kernel's documentation recommends it) or `experience`
        (widely
            advised, its worth on this host not measured).
        command: sets it until the next boot, as root; null where there is nothing to set, or no command that
        does.
    """

    name: str
    value: str
    good: bool
    recommendation: str | None
    reason: str
    source: str
    certainty: str
    command: str | None


class KernelResult(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's settings that matter to a database host: read, not changed."""

    schema: str = "pgsweep.kernel/1"
    machine: str
    memory_bytes: int
    server_version: str | None
    postmaster_pid: int | None
    settings: list[KernelSetting]
    missing: list[Missing] = []
    provenance: Provenance | None = None


class BudgetPart(msgspec.Struct, frozen=True, kw_only=True):
    """One use of the host's memory: now, and at max_connections between what is likely and what is possible.

    Attributes:
        now_bytes: measured.
        low_bytes: at max_connections if all connections are as those of today.
        high_bytes: at max_connections if each takes what the settings allow.
        kind: of the latter two: `measured`, `predicted` from measured values, or `assumed`.
        why: how it comes about.
    """

    name: str
    now_bytes: int
    low_bytes: int
    high_bytes: int
    kind: str
    why: str


class BudgetResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server's memory fits, now and at max_connections.

    Attributes:
        capacity_bytes: the host's memory, or the limit of the server's memory cgroup where that is smaller.
        limit_bytes: that limit; null where there is none.
        max_connections: what the budget is for: the setting, or what was asked for.
        plan_nodes: assumed number of sorts and hashes that a connection holds at once, each as large as
        allowed.
        page_cache_bytes: what is left for cached files: now, at the low and at the high end; negative where
        the
            memory does not suffice.
        verdict: `fits`, `tight` (at the high end it does not fit, or leaves next to no page cache), or `will
        be
            killed` (not even at the low end).
        safe_connections: so many fit at the high end.
        possible_connections: so many fit at the low end; with more, processes are killed.
    """

    schema: str = "pgsweep.budget/1"
    server_version: str
    memory_bytes: int
    capacity_bytes: int
    limit_bytes: int | None
    connections: int
    max_connections: int
    plan_nodes: int
    parts: list[BudgetPart]
    page_cache_bytes: tuple[int, int, int]
    verdict: str
    reasons: list[str]
    safe_connections: int
    possible_connections: int
    missing: list[Missing] = []
    provenance: Provenance | None = None


class HugePagePool(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's pool of huge pages of one size.

    `available` is free less reserved: what a server that starts now can count on. `needed` is how many of
    this size would hold the server's shared memory; null where its size is not known.
    """

    page_size_bytes: int
    is_default: bool
    total: int
    free: int
    reserved: int
    surplus: int
    overcommit: int
    available: int
    needed: int | None


class HugePagesMethods(msgspec.Struct, frozen=True, kw_only=True):
    """The number of huge pages by each method; null where it cannot be had.

    Attributes:
        exact: from the size that the server requests from the kernel.
        server: what the server says (shared_memory_size_in_huge_pages, 15 and later): one more than needed
            where the size is a whole number of pages.
        vmpeak: from VmPeak of the postmaster, as often advised: counts its code and private memory too.
    """

    exact: int | None
    server: int | None
    vmpeak: int | None


class PageTables(msgspec.Struct, frozen=True, kw_only=True):
    """Page tables of the server's processes: `now_bytes` is measured, all else predicted from it.

    Attributes:
        processes: those that were measured.
        now_bytes: as things are now.
        with_huge_pages_bytes: of the same processes, were the shared memory in huge pages.
        without_huge_pages_bytes: of the same processes, were it in ordinary pages.
        connections: how many connections the next two are for.
        connections_ordinary_bytes: in ordinary pages, once each has touched all of the shared memory.
        connections_huge_bytes: in huge pages.
    """

    processes: int
    now_bytes: int
    with_huge_pages_bytes: int
    without_huge_pages_bytes: int
    connections: int
    connections_ordinary_bytes: int
    connections_huge_bytes: int


class HugePagesChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the number of huge pages.

    Attributes:
        what: `reserved` or `undone`.
        page_size_bytes: of the pages.
        before: nr_hugepages before.
        after: nr_hugepages now.
        compacted: memory had to be compacted.
        files: those that were written, or removed.
    """

    what: str
    page_size_bytes: int
    before: int
    after: int
    compacted: bool
    files: list[str]


class HugePagesResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many huge pages a server needs, whether it uses them, and why not.

    Attributes:
        settings: those that were asked about instead of the server's own (a what-if).
        status: on, off or unknown: whether the shared memory lies in huge pages now.
        shared_memory_bytes: what the server requests from the kernel; with a what-if, would request.
        huge_pages_needed: null where it cannot be told; equal to `methods.exact` where that is known, else an
            estimate, and `reasons` says so.
        huge_page_size_bytes: the size that the number is for.
        available: pages of that size that are free and not reserved; null where the host cannot be seen.
        target: what nr_hugepages must be, other users' pages included.
        reasons: why the status is what it is, and what stands in the way.
        transparent: what the kernel does with transparent huge pages, by the names of its files.
        steps: what to do, as commands and lines to paste.
        plan: what --apply would write; nothing of it was done.
        change: what --apply did.
    """

    schema: str = "pgsweep.hugepages/1"
    server_version: str
    huge_pages: str
    settings: dict[str, str]
    status: str
    shared_buffers_bytes: int
    shared_memory_bytes: int | None
    huge_pages_needed: int | None
    huge_page_size_bytes: int
    available: int | None
    target: int | None
    reasons: list[str]
    methods: HugePagesMethods
    page_tables: PageTables | None
    pools: list[HugePagePool]
    transparent: dict[str, str]
    steps: list[PlanStep]
    plan: list[PlanStep] = []
    change: HugePagesChange | None = None
    missing: list[Missing] = []
    provenance: Provenance | None = None
