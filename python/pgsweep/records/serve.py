"""What `pgsweep serve` shows: servers, their state now, their history, and curves of sliding windows.

Times are seconds since 1970 here and in the history, and ISO 8601 in what addresses that end in `.json` give.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pgsweep.records.advice import AdviceResult, Gain
from pgsweep.records.cache import Missing
from pgsweep.records.prediction import PredictResult
from pgsweep.records.verification import VerifyResult

Time = Annotated[float, "time"]
"""Seconds since 1970; written as ISO 8601 (serve/web/data.py)."""


class ServeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a server is not observed now: the error's code, message, cause and hint, and since when."""

    message: str
    cause: str | None
    hint: str | None
    since: Time
    code: str = "failed"


class ServeCurve(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction over a sliding window of recorded evidence.

    Attributes:
        window_seconds: the length that was asked for.
        covered_seconds: the length that the evidence has, from its first to its last sample.
        at: when it was predicted.
        result: as `pgsweep predict` gives it, without `memory`, which the advice has at the sizes that it
            considers; null where nothing could be predicted.
        why: the reason for that.
        early: there is too little evidence yet, which is the reason.
        failed: why the last attempt at a newer one failed; what is shown is the one before it.
        failed_at: when that was.
        next_at: when the next one is due.
        seconds: processor time that the prediction took.
        paced_seconds: the time from one prediction to the next, where it is longer than usual because of what
            each takes.
        waits_since: when evidence was last recorded, where none has come since the prediction.
        advised_bytes: shared_buffers that the last advice from this window says; today's where it says to
            leave it; null where it says nothing.
        advice: that advice in one sentence.
    """

    window_seconds: int
    covered_seconds: float
    at: Time
    result: PredictResult | None
    why: str | None = None
    early: bool = False
    failed: str | None = None
    failed_at: Time | None = None
    next_at: Time | None = None
    seconds: float = 0.0
    paced_seconds: float | None = None
    waits_since: Time | None = None
    advised_bytes: int | None = None
    advice: str | None = None


class ServeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of shared_buffers while the server was watched.

    Attributes:
        at: when it was seen first.
    """

    at: Time
    before_bytes: int
    after_bytes: int


class ServeVerification(msgspec.Struct, frozen=True, kw_only=True):
    """Whether what was predicted came true after shared_buffers was changed.

    Attributes:
        at: when it was verified.
        changed_at: when the first evidence with the new size began.
        result: as `pgsweep verify` gives it.
    """

    at: Time
    changed_at: Time
    result: VerifyResult


class ServeAdvised(msgspec.Struct, frozen=True, kw_only=True):
    """What one window of evidence says of the settings.

    Attributes:
        window_seconds: the length that was asked for.
        covered_seconds: the length that the evidence has.
        at: when it was decided.
        size_bytes: the advised shared_buffers; the current size if no change is advised, null if unknown.
        result: as `pgsweep advise` gives it.
    """

    window_seconds: int
    covered_seconds: float
    at: Time
    size_bytes: int | None
    result: AdviceResult


class ServeAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The advice for one server.

    Attributes:
        best: the advice that rests on most evidence; null where there is none yet.
        windows: the advice from each window, shortest first.
        why: why there is none.
        verification: the last one; null where no change of shared_buffers could be verified yet.
        change: the last change; null where shared_buffers was not changed while it was watched.
        trouble: why the last change could not be verified, or the last verification cannot be read.
    """

    schema: str = "pgsweep.serve.advice/1"
    server: str
    best: ServeAdvised | None = None
    windows: list[ServeAdvised] = []
    why: str | None = None
    verification: ServeVerification | None = None
    change: ServeChange | None = None
    trouble: str | None = None


class ServeAdviceChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What the webhook of serve.toml is told when another setting, or another value, is advised.

    Attributes:
        at: when it was decided, ISO 8601.
        text: the server and the advice in one sentence, as chat programs show it.
        decision: on shared_buffers: `change`, `leave` or `unknown`.
        summary: the advice in one sentence.
        before: what was advised until now, in one sentence.
        settings: the values to set, by name.
    """

    schema: str = "pgsweep.serve.advice-changed/1"
    server: str
    at: str
    text: str
    decision: str
    summary: str
    before: str
    settings: dict[str, str | None]


class ServeAlert(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of `--alerts` that holds now.

    Attributes:
        server: the name; empty where it is about pgsweep itself.
        severity: `critical`, `warning` or `info`.
        state: `pending` until it has held for as long as it must, then `firing`.
        since: when it was first seen to hold; when pgsweep was started at the latest.
        fires_after_seconds: for how long it must hold.
    """

    name: str
    server: str
    severity: str
    state: str
    since: Time
    fires_after_seconds: float
    summary: str
    description: str


class ServeTrend(msgspec.Struct, frozen=True, kw_only=True):
    """The last hour of one server, minute by minute: measured; null where nothing was counted.

    Attributes:
        begin: of the first minute.
        reads_per_second: blocks read into the pool.
    """

    begin: Time
    reads_per_second: list[float | None]
    hit_ratio: list[float | None]


class ServeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One server in the overview.

    Attributes:
        key: its part of addresses on the page.
        state: `starting`, `up` or `down`.
        reads_per_second: blocks read into the pool; measured over the last interval.
        avoidable_reads_per_second: the reads that a pool of twice the size would save: predicted, from the
            curve of the shortest window that has one.
        advised_bytes: the advised shared_buffers; the current size if no change is advised, null if unknown.
        advice: the advice in one sentence.
        advice_gain: the expected gain of the advice; null if no change is advised.
        advice_verdict: on the prediction that the advice rests on; `verdict` is that on the shortest window.
        waiting_saved_ratio: seconds of waiting for reads, of all sessions together, that it saves in each
            second: predicted; 0 where shared_buffers is to be left.
        collect_share: share of one backend's time that pgsweep's statements took so far, where it reads the
            pool by SQL; by peek the statements for the counters alone.
        held_back: looks are further apart than requested, to limit the cost.
        standing: with what its host gives it; null until it was looked at.
        reclaim_bytes: memory that is not needed for today's throughput, less 2%: predicted; null where it is
            not known.
        pays_bytes: more memory that would certainly raise the throughput; null where none would, or unknown.
        trend: the last hour; null until something was counted.
        alerts: that hold now, of this server and of pgsweep itself.
        pool_missing: why the buffers are not read though the server answers, and what would allow it. Then
            `pool_source` is empty, and what follows from the buffers is null. Null where they are read.
    """

    key: str
    name: str
    place: str
    state: str
    failure: ServeFailure | None = None
    at: Time | None = None
    server_version: str = ""
    database: str = ""
    pool_source: str = ""
    shared_buffers_bytes: int | None = None
    used_bytes: int | None = None
    hit_ratio: float | None = None
    reads_per_second: float | None = None
    disk_read_bytes_per_second: float | None = None
    avoidable_reads_per_second: float | None = None
    advised_bytes: int | None = None
    advice: str | None = None
    advice_gain: Gain | None = None
    advice_verdict: str | None = None
    waiting_saved_ratio: float | None = None
    verdict: str | None = None
    interval_seconds: float | None = None
    held_back: bool = False
    collect_share: float | None = None
    collect_seconds: float | None = None
    pool_missing: Missing | None = None
    missing: list[Missing] = []
    standing: ServeStanding | None = None
    reclaim_bytes: int | None = None
    pays_bytes: int | None = None
    alerts: list[ServeAlert] = []
    trend: ServeTrend | None = None


class ServeOverview(msgspec.Struct, frozen=True, kw_only=True):
    """All servers: those that are down, then those at which the advice saves most time of waiting.

    Attributes:
        history_trouble: why the history is not written now; null where it is.
        alerts: that hold now: those that fire, then those that are pending.
    """

    schema: str = "pgsweep.serve.overview/1"
    at: Time
    servers: list[ServeSummary]
    history_trouble: str | None = None
    alerts: list[ServeAlert] = []


class ServeGap(msgspec.Struct, frozen=True, kw_only=True):
    """A time of which the history has nothing, and why."""

    begin: Time
    end: Time
    why: str


class ServeSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a server's history: one value of each column for each time; null where it is not known.

    Attributes:
        step_seconds: 10, 60 or 900: the level of the history that the values come from.
        at: ends of the intervals.
    """

    schema: str = "pgsweep.serve.series/1"
    server: str
    begin: Time
    end: Time
    step_seconds: int
    at: list[Time]
    columns: dict[str, list[float | None]]
    gaps: list[ServeGap]


class ServeDatabase(msgspec.Struct, frozen=True, kw_only=True):
    """One database over time: measured, as pg_stat_database counts it.

    Attributes:
        name: empty for databases that are not named one by one.
        hits: blocks found in the pool in each interval; null where nothing was counted.
        reads: blocks read into the pool, likewise.
    """

    name: str
    hits: list[float | None]
    reads: list[float | None]


class ServeDatabases(msgspec.Struct, frozen=True, kw_only=True):
    """Hits and reads of each database over a range, those with most reads first.

    Attributes:
        at: ends of the intervals.
        seconds: how much of each interval was observed.
        trouble: why nothing is known, where the history cannot be read.
    """

    schema: str = "pgsweep.serve.databases/1"
    server: str
    begin: Time
    end: Time
    at: list[Time]
    seconds: list[float | None]
    databases: list[ServeDatabase]
    trouble: str | None = None


class ServeShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one relation has in the pool over time: measured.

    Attributes:
        relation: its name, with the schema where that is not `public`; empty for all that are not named.
        pool_bytes: at the end of each interval, on average over coarser ones; null where it was not among the
            largest.
    """

    database: str
    relation: str
    pool_bytes: list[float | None]


class ServeShares(msgspec.Struct, frozen=True, kw_only=True):
    """What relations have in the pool over a range: the largest, then all others together.

    Attributes:
        at: ends of the intervals.
        trouble: why nothing is known, where the history cannot be read.
    """

    schema: str = "pgsweep.serve.shares/1"
    server: str
    begin: Time
    end: Time
    at: list[Time]
    relations: list[ServeShare]
    trouble: str | None = None


class ServeMemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the host's memory; `twice` of it lies in another part too."""

    name: str
    size_bytes: int
    twice_bytes: int = 0
    why: str = ""


class ServeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The host's memory as one budget: measured.

    Attributes:
        capacity_bytes: the host's memory, or the limit of the server's memory cgroup where that is smaller.
    """

    schema: str = "pgsweep.serve.memory/1"
    at: Time
    capacity_bytes: int
    parts: list[ServeMemoryPart]
    missing: list[Missing] = []


class ServeStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How a server stands with what its host gives it; null where that is not seen.

    Attributes:
        huge_pages_wanted: as many as the server asks for; 0 where it wants none.
        huge_pages_used: of these, in use.
        huge_pages_missing: not in use, and more than the kernel has free; 0 with `huge_pages = try` where
            none are set aside.
        memory_limit_bytes: of the memory cgroup that leaves least; null too where none limits it.
        memory_room_bytes: what it leaves: the limit, less what cannot be dropped. Beyond it processes are
            killed.
        pending_restart: settings whose new values wait for a restart.
    """

    huge_pages_wanted: int | None
    huge_pages_used: int | None
    huge_pages_missing: int | None
    memory_limit_bytes: int | None
    memory_room_bytes: int | None
    pending_restart: list[str]


class ServeSavedSize(msgspec.Struct, frozen=True, kw_only=True):
    """Reads into the pool that another size would have saved; negative if it would have caused more.

    Attributes:
        low, high: the 90% intervals of all hours, summed.
    """

    shared_buffers_bytes: int
    reads: float
    low: float
    high: float


class ServeSaved(msgspec.Struct, frozen=True, kw_only=True):
    """What other sizes of shared_buffers would have saved over a range: predicted.

    Attributes:
        hours: those of the range that have a curve.
        seconds: that their evidence covers.
        reads: into the pool in these seconds: measured.
        sizes: those at which all of these hours have a prediction.
    """

    hours: int
    seconds: float
    reads: float
    sizes: list[ServeSavedSize]


class ServeCurves(msgspec.Struct, frozen=True, kw_only=True):
    """The curves of one server: now by window, and those kept of earlier hours.

    Attributes:
        saved: what other sizes would have saved in the range; null where none of its hours has a curve.
        trouble: why those of earlier hours are not known, where the history cannot be read.
    """

    schema: str = "pgsweep.serve.curves/1"
    server: str
    now: list[ServeCurve]
    hours: list[ServeCurve] = []
    saved: ServeSaved | None = None
    recording: str | None = None
    trouble: str | None = None


class ServeConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """What one user, database, statement or backend used over a range: measured, and sampled where said so.

    A value is null where it is not known.

    Attributes:
        kind: `user`, `database`, `statement` or `backend`.
        id: of a statement its query id, of a backend its process id; else empty. `other` is all that are not
            named one by one.
        query: the normalised text, where serve.toml has `show-queries = true`.
        active_seconds: time in which it executed something, summed over backends: sampled.
        read_wait_seconds: of that the time in which it waited for blocks to be read: sampled.
        calls: executions; from pg_stat_statements, as are those that follow.
        hits: blocks found in the pool.
        reads: blocks read into the pool.
        temporary_blocks: blocks of temporary files read or written.
        memory_bytes: private memory and page tables of its backends, on average over the range.
    """

    kind: str
    user: str = ""
    database: str = ""
    id: str = ""
    query: str | None = None
    active_seconds: float | None = None
    read_wait_seconds: float | None = None
    calls: float | None = None
    execution_seconds: float | None = None
    hits: float | None = None
    reads: float | None = None
    temporary_blocks: float | None = None
    memory_bytes: float | None = None


class ServeConsumers(msgspec.Struct, frozen=True, kw_only=True):
    """Who used the server over a range: by kind those with the largest shares first, then `other`.

    Attributes:
        covered_seconds: of the range; the rest of it was not observed.
        totals: all together, of each kind the same but for what only one kind has.
        missing: what is not seen now, and why.
        trouble: why nothing is known, where the history cannot be read.
    """

    schema: str = "pgsweep.serve.consumers/1"
    server: str
    begin: Time
    end: Time
    covered_seconds: float
    totals: ServeConsumer | None
    consumers: list[ServeConsumer]
    missing: list[Missing] = []
    trouble: str | None = None
