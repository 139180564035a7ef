"""What is known now of each server that is watched: written by its threads, read by pages and metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from pgsweep.cache.top.sample import CacheSample
from pgsweep.records.cache import Missing
from pgsweep.records.prediction import PredictResult
from pgsweep.records.serve import (
    ServeAdvised,
    ServeAlert,
    ServeChange,
    ServeCurve,
    ServeFailure,
    ServeMemory,
    ServeOverview,
    ServeStanding,
    ServeSummary,
    ServeTrend,
    ServeVerification,
)
from pgsweep.records.top import TopSample, TopView
from pgsweep.serve.config import ServeConfig, ServerConfig
from pgsweep.serve.counters_only import CountersSample
from pgsweep.units import format_bytes

_MOST_VIEWS: Final = 64

_TREND_MINUTES: Final = 60

_GROWN: Final = 0.01
"""By more than this share the pool must hold more than in evidence, for the evidence to be outgrown."""


class SampleViews:
    """Views of one sample, each made once: of 20,000 relations one takes some milliseconds of processor time.

    Args:
        sample: which.
    """

    def __init__(self, sample: CacheSample) -> None:
        self.of = sample
        self._lock = threading.Lock()
        self._folded: CacheSample | None = None
        self._views: dict[TopView, TopSample] = {}

    def view(self, view: TopView) -> TopSample:
        """Return the requested relations in the requested order."""
        with self._lock:
            found = self._views.get(view)
            if found is None:
                if view.fold and self._folded is None:
                    self._folded = self.of.folded()
                sample = self._folded if view.fold and self._folded is not None else self.of
                found = sample.sample(msgspec.structs.replace(view, fold=False))
                if len(self._views) >= _MOST_VIEWS:
                    self._views.clear()
                self._views[view] = found
            return found


@dataclass(slots=True)
class Watched:
    """One server, as last seen.

    Attributes:
        sample: the last sample; None until there is one, while the server is away, and while its buffers may
            not be read.
        counters: what is known instead while its buffers may not be read.
        views: what was made of it for pages and metrics.
        values: what the history got with it.
        totals: counters since this process began, for metrics: hits, reads, what served these, and so on.
        curves: by window.
        advised: the last advice from each window.
        change: of shared_buffers, the last while it was watched.
        last_size_bytes: of shared_buffers, also while the server is away.
        verification: the last; and why the last change could not be verified.
        consumers_missing: what is not seen of the consumers, and why.
        query_texts: by query id, where they are wanted.
        user_metrics: by name: rows of (labels, value); None where the query failed.
        user_failures: why, by name.
        minutes: seconds, hits and reads that were counted in each minute of the last hour.
        user_intervals: seconds from one run to the next, by name.
    """

    config: ServerConfig
    place: str
    sample: CacheSample | None = None
    counters: CountersSample | None = None
    views: SampleViews | None = None
    at: float = 0.0
    failure: ServeFailure | None = None
    values: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    curves: dict[int, ServeCurve] = field(default_factory=dict)
    advised: dict[int, ServeAdvised] = field(default_factory=dict)
    change: ServeChange | None = None
    last_size_bytes: int | None = None
    verification: ServeVerification | None = None
    verification_failed: str | None = None
    memory: ServeMemory | None = None
    standing: ServeStanding | None = None
    recording: str | None = None
    consumers_missing: list[Missing] = field(default_factory=list)
    query_texts: dict[int, str] = field(default_factory=dict)
    user_metrics: dict[str, list[tuple[tuple[str, ...], float]] | None] = field(default_factory=dict)
    user_failures: dict[str, str] = field(default_factory=dict)
    user_intervals: dict[str, float] = field(default_factory=dict)
    minutes: dict[int, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """Return `up`, `down`, or `starting` before the first answer."""
        return "down" if self.failure is not None else "starting" if self.head is None else "up"

    @property
    def head(self) -> TopSample | CountersSample | None:
        """Return what the last sample has of the server as a whole."""
        return self.counters if self.sample is None else self.sample.head

    @property
    def size_bytes(self) -> int | None:
        """Return the size of shared_buffers."""
        if self.sample is not None:
            return self.sample.head.pool.size_bytes
        return None if self.counters is None else self.counters.size_bytes

    def note_minute(self, at: float, seconds: float, hits: float, reads: float) -> None:
        """Add what was counted until a time to its minute, and drop what is older than an hour."""
        minute = int(at // 60)
        before = self.minutes.get(minute, (0.0, 0.0, 0.0))
        self.minutes[minute] = (before[0] + seconds, before[1] + hits, before[2] + reads)
        for old in [one for one in self.minutes if one <= max(self.minutes) - _TREND_MINUTES]:
            del self.minutes[old]

    def note_size(self) -> None:
        """Note a change of shared_buffers, if there was one since the last sample."""
        size = self.size_bytes
        if size is not None and self.last_size_bytes not in (None, size):
            self.change = ServeChange(at=self.at, before_bytes=self.last_size_bytes or 0, after_bytes=size)
        self.last_size_bytes = size or self.last_size_bytes


class Board:
    """All servers; may be used by several threads.

    Args:
        config: what is watched.
        places: where each server is, in words, in the order of the configuration.
        history_trouble: says why the history is not written now.
    """

    def __init__(
        self, config: ServeConfig, places: list[str], history_trouble: Callable[[], str | None]
    ) -> None:
        self._lock = threading.Lock()
        self.servers = {
            server.key: Watched(server, place) for server, place in zip(config.servers, places, strict=True)
        }
        self.history_trouble = history_trouble
        self._listeners: list[Callable[[str, str], None]] = []
        self.alerts: list[ServeAlert] = []
        """Those that hold now; replaced as a whole."""

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Have a function called with the key and the kind of each change: `sample`, `curve` and so on."""
        self._listeners.append(listener)

    def changed(self, key: str, kind: str, change: Callable[[Watched], None]) -> None:
        """Change what is known of a server, and say so."""
        with self._lock:
            change(self.servers[key])
        for listener in self._listeners:
            listener(key, kind)

    def sample(self, key: str, view: TopView) -> TopSample | None:
        """Return the last sample with these relations; None while there is none."""
        with self._lock:
            watched = self.servers[key]
            sample = watched.sample
            if sample is None:
                watched.views = None
                return None
            if watched.views is None or watched.views.of is not sample:
                watched.views = SampleViews(sample)
            views = watched.views
        return views.view(view)

    def overview(self) -> ServeOverview:
        """Return all servers: those that are down, then those with most to be gained.

        That is the waiting that the advice saves; among those where nothing is to be changed, the reads that
        a larger pool would save.
        """
        with self._lock:
            found = [summary_of(watched) for watched in self.servers.values()]
        found.sort(
            key=lambda s: (
                s.state != "down",
                -(s.waiting_saved_ratio or 0.0),
                -(s.avoidable_reads_per_second or 0.0),
                s.name,
            )
        )
        return ServeOverview(
            at=time.time(), servers=found, history_trouble=self.history_trouble(), alerts=self.alerts
        )

    def summary(self, key: str) -> ServeSummary:
        """Return one server."""
        with self._lock:
            found = summary_of(self.servers[key])
        alerts = [one for one in self.alerts if one.server in ("", found.name)]
        return msgspec.structs.replace(found, alerts=alerts)

    def curves(self, key: str) -> list[ServeCurve]:
        """Return the curves of the sliding windows, shortest first."""
        with self._lock:
            return curves_of(self.servers[key])

    def advised(self, key: str) -> list[ServeAdvised]:
        """Return the advice from each window that holds for the server as it is, shortest first."""
        with self._lock:
            return advised_of(self.servers[key])

    def memory(self, key: str) -> ServeMemory | None:
        """Return the host's memory; None where it is not seen."""
        with self._lock:
            return self.servers[key].memory


def outgrown(watched: Watched, most_used_bytes: int | None) -> bool:
    """Return whether the pool holds more now than evidence from which "all that is used fits" was concluded.

    Args:
        most_used_bytes: that held pages in the evidence; None where nothing of the kind was concluded.
    """
    if most_used_bytes is None or watched.sample is None:
        return False
    return watched.sample.head.pool.used_bytes > most_used_bytes * (1 + _GROWN)


def curves_of(watched: Watched) -> list[ServeCurve]:
    """Return the curves, shortest window first; without a result where the pool has outgrown its evidence."""
    found = []
    for _, curve in sorted(watched.curves.items()):
        room = None if curve.result is None else curve.result.no_eviction
        if room is not None and watched.sample is not None and outgrown(watched, room.used_bytes):
            used = format_bytes(watched.sample.head.pool.used_bytes)
            why = (
                f"at most {format_bytes(room.used_bytes)} of shared_buffers held pages in the evidence, and "
                f"{used} do now: what follows from that no longer holds, and the next prediction is to come"
            )
            curve = msgspec.structs.replace(curve, result=None, why=why, advised_bytes=None, advice=None)
        found.append(curve)
    return found


def advised_of(watched: Watched) -> list[ServeAdvised]:
    """Return the advice from each window that holds for the server as it is, shortest first.

    Left out is what was for another shared_buffers, and what takes for all that is used less than is used
    now.
    """
    today = watched.size_bytes
    return [
        one
        for _, one in sorted(watched.advised.items())
        if today in (None, one.result.observed.shared_buffers_bytes)
        and not outgrown(watched, one.result.most_used_bytes)
    ]


def best_advice(windows: list[ServeAdvised]) -> ServeAdvised | None:
    """Return the advice that rests on most evidence; advice with a prediction comes before advice without.

    A setting that takes a restart should suit the day, not the last quarter of an hour.
    """
    return max(
        windows,
        key=lambda one: (one.result.verdict.level != "refused", one.covered_seconds, one.at),
        default=None,
    )


def waiting_saved(one: ServeAdvised) -> float | None:
    """Return the seconds of waiting for reads that an advised size saves in each second; None if unknown."""
    if one.size_bytes is None:
        return None
    waits = {point.shared_buffers_bytes: point.wait_ratio for point in one.result.points}
    today = one.result.observed.shared_buffers_bytes
    if one.size_bytes == today:
        return 0.0
    if today not in waits or one.size_bytes not in waits:
        return None
    return max(0.0, waits[today] - waits[one.size_bytes])


def _advice_fields(watched: Watched) -> dict[str, Any]:
    best = best_advice(advised_of(watched))
    if best is None:
        return {}
    size = best.result.settings[0]
    return {
        "advised_bytes": best.size_bytes,
        "advice": best.result.summary,
        "advice_gain": size.gain,
        "advice_verdict": best.result.verdict.level,
        "waiting_saved_ratio": waiting_saved(best),
        **_memory_fields(watched),
    }


def _memory_fields(watched: Watched) -> dict[str, Any]:
    """Return the memory that could be reclaimed, and that would pay, by the longest window that says it."""
    known = [one for one in advised_of(watched) if one.result.least is not None]
    best = best_advice(known)
    least = None if best is None else best.result.least
    return {} if least is None else {"reclaim_bytes": least.reclaim_bytes, "pays_bytes": least.pays_bytes}


def _missing_metrics(watched: Watched) -> list[Missing]:
    """Return which metrics of the user's own have no value, and why; nothing of a server that is down."""
    if watched.failure is not None:
        return []
    return [
        Missing(what=f"the metric `{name}` of serve.toml", why=why, enable=None)
        for name, why in sorted(watched.user_failures.items())
    ]


def _missing_split(watched: Watched, head: TopSample | CountersSample) -> list[Missing]:
    """Return why it is not known what served the reads, where that is so though disk reads are seen."""
    if not head.backends.hidden or "disk_read_bytes" not in watched.totals:
        return []
    why = "sessions of other roles are hidden, and what a transaction reads is counted at its end"
    enable = "grant pg_monitor to the role: pgsweep doctor has the command"
    return [Missing(what="whether reads came from the page cache or a disk", why=why, enable=enable)]


def trend_of(watched: Watched) -> ServeTrend | None:
    """Return the last hour."""
    if not watched.minutes:
        return None
    last = int(time.time() // 60)
    first = last - _TREND_MINUTES + 1
    found = [watched.minutes.get(minute) for minute in range(first, last + 1)]
    return ServeTrend(
        begin=60.0 * first,
        reads_per_second=[None if one is None or not one[0] else one[2] / one[0] for one in found],
        hit_ratio=[
            None if one is None or not one[1] + one[2] else one[1] / (one[1] + one[2]) for one in found
        ],
    )


def summary_of(watched: Watched) -> ServeSummary:
    """Return the line of the overview."""
    config, values, head = watched.config, watched.values, watched.head
    best = next(
        (c.result for c in curves_of(watched) if c.result is not None and c.result.points),
        None,
    )
    verdict = best.verdict.level if best is not None else None
    if head is None:
        return ServeSummary(
            key=config.key,
            name=config.name,
            place=watched.place,
            state=watched.state,
            failure=watched.failure,
            verdict=verdict,
            missing=_missing_metrics(watched),
            standing=watched.standing,
            trend=trend_of(watched),
            **_advice_fields(watched),
        )
    covered = values.get("covered_seconds", 0.0)
    accesses = values.get("hits", 0.0) + values.get("reads", 0.0)
    reads = values["reads"] / covered if covered > 0 and "reads" in values else None
    disk = values.get("disk_read_bytes")
    return ServeSummary(
        key=config.key,
        name=config.name,
        place=watched.place,
        state=watched.state,
        failure=watched.failure,
        at=watched.at,
        server_version=head.server_version,
        database=head.database,
        pool_source="" if isinstance(head, CountersSample) else head.pool_source,
        pool_missing=head.pool_missing if isinstance(head, CountersSample) else None,
        shared_buffers_bytes=watched.size_bytes,
        used_bytes=None if isinstance(head, CountersSample) else head.pool.used_bytes,
        hit_ratio=values["hits"] / accesses if accesses > 0 else None,
        reads_per_second=reads,
        disk_read_bytes_per_second=disk / covered if disk is not None and covered > 0 else None,
        avoidable_reads_per_second=avoidable(best, reads),
        verdict=verdict,
        interval_seconds=head.interval_seconds,
        held_back=head.held_back,
        collect_share=head.backend_share,
        collect_seconds=head.look_seconds,
        missing=[*head.missing, *_missing_split(watched, head), *_missing_metrics(watched)],
        standing=watched.standing,
        trend=trend_of(watched),
        **_advice_fields(watched),
    )


def avoidable(result: PredictResult | None, reads_per_second: float | None) -> float | None:
    """Return the reads that a pool of twice the size would save, predicted; None where it is not known.

    The reads of now, times the share by which the predicted miss ratio falls from today's size to twice that.
    """
    if result is None or reads_per_second is None:
        return None
    today = result.observed.shared_buffers_bytes
    ratios = {point.shared_buffers_bytes: point.miss_ratio for point in result.points}
    if today not in ratios or 2 * today not in ratios or ratios[today] <= 0:
        return None
    return max(0.0, reads_per_second * (1 - ratios[2 * today] / ratios[today]))
