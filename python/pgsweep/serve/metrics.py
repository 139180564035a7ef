"""What is known now as metrics of Prometheus: `/metrics`, made anew for each request from the board.

Every metric has the label `server`. Counters count from the start of `pgsweep serve`, in steps of its
looks, and never fall: a reset of the server's statistics, a crash or a dropped database does not show in
them. Where something cannot be seen its metric is absent, never zero: so are all that follow from the buffers
while the role may not read them. `pgsweep_reads_total` with `served="page_cache"` and `"disk"` exists only
where the server's processes run on this host and may be looked into. Reads are added to them as soon as it is
known what served them (served_by.py), at the latest after five minutes; those of which it is not known are
`served="outside_pool"`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pgsweep._native import __version__
from pgsweep.plain import shown
from pgsweep.records.top import TopRelation, TopSample, TopView
from pgsweep.serve.board import Board, Watched, advised_of, best_advice, curves_of, summary_of
from pgsweep.serve.config import MetricConfig

CONTENT_TYPE: Final = exposition.CONTENT_TYPE_LATEST
_VERDICTS: Final = ("reliable", "rough", "refused")
_WINDOW: Final = 900
"""The window whose curve is a metric: the shortest."""


def exposed(board: Board, metrics: Iterable[MetricConfig], top_relations: int) -> bytes:
    """Return the page."""
    registry = CollectorRegistry()
    registry.register(Metrics(board, list(metrics), top_relations))
    return exposition.generate_latest(registry)


class Metrics:
    """The metrics of one sample.

    Args:
        board: what is known.
        metrics: the user's own.
        top_relations: how many relations a server has by name.
    """

    def __init__(self, board: Board, metrics: list[MetricConfig], top_relations: int) -> None:
        self._board = board
        self._user = metrics
        self._top_relations = top_relations

    def describe(self) -> list[Metric]:
        """Return nothing: names are not checked twice."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield _gauge("pgsweep_build_info", "Version of pgsweep.", ["version", "python"]).of(
            [__version__, platform.python_version()], 1.0
        )
        yield from self.states()
        samples = [
            (watched, self._board.sample(key, TopView(sort="pool", limit=self._top_relations)))
            for key, watched in self._board.servers.items()
        ]
        yield from _relations(samples)

    def states(self) -> Iterator[Metric]:
        """Yield the metrics of servers, but for those of relations."""
        trouble = _gauge("pgsweep_history_failed", "1 while the history cannot be written.", [])
        yield trouble.of([], 0.0 if self._board.history_trouble() is None else 1.0)
        servers = list(self._board.servers.values())
        for part in (_states, _caches, _standing, _curves, _advice, self._user_metrics):
            yield from part(servers)

    def _user_metrics(self, servers: list[Watched]) -> Iterator[Metric]:
        failed = _gauge(
            "pgsweep_user_metric_failed", "1 where a query of the user's own fails.", ["server", "metric"]
        )
        apart = _gauge(
            "pgsweep_user_metric_interval_seconds",
            "Time between runs of a query of the user's own; longer than requested where it costs much.",
            ["server", "metric"],
        )
        for metric in self._user:
            name, help_text = (
                f"pgsweep_user_{metric.name}",
                metric.help or f"Query {metric.name} of serve.toml.",
            )
            labels = ["server", *metric.labels]
            family = (
                CounterMetricFamily(name, help_text, labels=labels)
                if metric.type == "counter"
                else GaugeMetricFamily(name, help_text, labels=labels)
            )
            for watched in servers:
                if metric.name not in watched.user_metrics:
                    continue
                rows = watched.user_metrics[metric.name]
                failed.of([watched.config.name, metric.name], 1.0 if rows is None else 0.0)
                apart.of([watched.config.name, metric.name], watched.user_intervals.get(metric.name))
                for values, number in rows or []:
                    family.add_metric([watched.config.name, *values], number)
            yield family
        yield from (failed, apart)


class _Gauge(GaugeMetricFamily):
    def of(self, labels: list[str], value: float | None) -> _Gauge:
        """Add a value, if there is one."""
        if value is not None:
            self.add_metric(labels, value)
        return self


def _gauge(name: str, help_text: str, labels: list[str]) -> _Gauge:
    return _Gauge(name, help_text, labels=labels)


def _counter(name: str, help_text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(name, help_text, labels=labels)


def _states(servers: list[Watched]) -> Iterator[Metric]:
    up = _gauge("pgsweep_up", "1 where the server answers.", ["server"])
    seconds = _gauge("pgsweep_collect_duration_seconds", "Time that the last sample took.", ["server"])
    interval = _gauge("pgsweep_collect_interval_seconds", "From one sample to the next.", ["server"])
    share = _gauge(
        "pgsweep_collect_backend_share_ratio", "Share of one backend's time that samples took.", ["server"]
    )
    at = _gauge("pgsweep_collect_timestamp_seconds", "When the last sample was taken.", ["server"])
    for watched in servers:
        name, head = [watched.config.name], watched.head
        up.of(name, 0.0 if head is None else 1.0)
        if head is not None:
            seconds.of(name, head.look_seconds)
            interval.of(name, head.interval_seconds)
            share.of(name, head.backend_share)
            at.of(name, watched.at)
    yield from (up, seconds, interval, share, at)


def _caches(servers: list[Watched]) -> Iterator[Metric]:
    reads = _counter(
        "pgsweep_reads", "Blocks that were requested, by what served them.", ["server", "served"]
    )
    disk = _counter(
        "pgsweep_disk_read_bytes", "Bytes that the server's processes read from disks.", ["server"]
    )
    evictions = _counter("pgsweep_evictions", "Pages evicted (PostgreSQL 16 and later).", ["server"])
    size = _gauge("pgsweep_shared_buffers_bytes", "Size of shared_buffers.", ["server"])
    cached = _gauge("pgsweep_cached_bytes", "Bytes of relations in the caches.", ["server", "where"])
    buffers = _gauge("pgsweep_buffers", "Used buffers by usage_count.", ["server", "usage_count"])
    sweep = _gauge("pgsweep_sweep_period_seconds", "Time of one pass of the clock hand.", ["server"])
    memory = _gauge("pgsweep_memory_bytes", "Memory of the host by use.", ["server", "part"])
    for watched in servers:
        name, totals, sample = watched.config.name, watched.totals, watched.sample
        if "hits" in totals:
            reads.add_metric([name, "pool"], totals["hits"])
            for where in ("page_cache", "disk", "outside_pool"):
                if f"{where}_reads" in totals:
                    reads.add_metric([name, where], totals[f"{where}_reads"])
        if "disk_read_bytes" in totals:
            disk.add_metric([name], totals["disk_read_bytes"])
        if "evictions" in totals:
            evictions.add_metric([name], totals["evictions"])
        size.of([name], watched.size_bytes)
        if watched.memory is not None:
            for part in watched.memory.parts:
                memory.of([name, part.name], part.size_bytes)
        if sample is None:
            continue
        head = sample.head
        for count, number in enumerate(head.pool.usage_counts):
            buffers.of([name, str(count)], number)
        sweep.of([name], sweep_period(watched.values, head.pool.size_bytes / head.block_size_bytes))
        used, both = watched.values.get("used_bytes"), watched.values.get("both_bytes")
        page_cache = watched.values.get("page_cache_bytes")
        if used is not None and both is not None and page_cache is not None:
            cached.of([name, "pool_only"], max(0.0, used - both))
            cached.of([name, "page_cache_only"], max(0.0, page_cache - both))
            cached.of([name, "both"], both)
    yield from (reads, disk, evictions, size, cached, buffers, sweep, memory)


def _standing(servers: list[Watched]) -> Iterator[Metric]:
    pages = _gauge(
        "pgsweep_huge_pages",
        "Huge pages of a server: wanted, used, and missing (not in use, and more than the kernel has free).",
        ["server", "state"],
    )
    limit = _gauge(
        "pgsweep_memory_limit_bytes", "Limit of the memory cgroup that leaves a server least.", ["server"]
    )
    room = _gauge(
        "pgsweep_memory_room_bytes", "Room below that limit, beyond which processes are killed.", ["server"]
    )
    pending = _gauge(
        "pgsweep_settings_pending_restart", "Settings whose new values wait for a restart.", ["server"]
    )
    reclaim = _gauge(
        "pgsweep_advised_memory_reclaim_bytes",
        "Memory that is not needed for today's throughput, less 2%: predicted.",
        ["server"],
    )
    for watched in servers:
        name, standing = watched.config.name, watched.standing
        reclaim.of([name], summary_of(watched).reclaim_bytes)
        if standing is None:
            continue
        pages.of([name, "wanted"], standing.huge_pages_wanted)
        pages.of([name, "used"], standing.huge_pages_used)
        pages.of([name, "missing"], standing.huge_pages_missing)
        limit.of([name], standing.memory_limit_bytes)
        room.of([name], standing.memory_room_bytes)
        pending.of([name], len(standing.pending_restart))
    yield from (pages, limit, room, pending, reclaim)


def sweep_period(values: dict[str, float], buffers: float) -> float | None:
    """Return the time of one pass of the clock hand over the last interval; None where it is not seen."""
    moved, seconds = values.get("hand_buffers"), values.get("covered_seconds")
    if not moved or not seconds:
        return None
    return buffers * seconds / moved


def _curves(servers: list[Watched]) -> Iterator[Metric]:
    ratio = _gauge(
        "pgsweep_predicted_pool_miss_ratio",
        "Predicted miss ratio at a size of shared_buffers, and the bounds of its 90% interval.",
        ["server", "shared_buffers_bytes", "bound"],
    )
    verdict = _gauge(
        "pgsweep_prediction_verdict", "1 for the verdict on the last prediction.", ["server", "verdict"]
    )
    at = _gauge("pgsweep_prediction_timestamp_seconds", "When it was made.", ["server"])
    saved = _gauge(
        "pgsweep_predicted_avoidable_reads_per_second",
        "Reads into the pool that twice the shared_buffers would save: predicted.",
        ["server"],
    )
    for watched in servers:
        name = watched.config.name
        curve = next((one for one in curves_of(watched) if one.window_seconds == _WINDOW), None)
        if curve is None or curve.result is None:
            continue
        for point in curve.result.points:
            size = str(point.shared_buffers_bytes)
            ratio.of([name, size, "estimate"], point.miss_ratio)
            ratio.of([name, size, "low"], point.low)
            ratio.of([name, size, "high"], point.high)
        for word in _VERDICTS:
            verdict.of([name, word], 1.0 if word == curve.result.verdict.level else 0.0)
        at.of([name], curve.at)
        saved.of([name], summary_of(watched).avoidable_reads_per_second)
    yield from (ratio, verdict, at, saved)


def _advice(servers: list[Watched]) -> Iterator[Metric]:
    advised = _gauge(
        "pgsweep_advised_shared_buffers_bytes",
        "Size of shared_buffers as advised; today's size where it is to be left.",
        ["server"],
    )
    at = _gauge("pgsweep_advice_timestamp_seconds", "When it was decided.", ["server"])
    waiting = _gauge(
        "pgsweep_advice_waiting_saved_ratio",
        "Seconds of waiting for reads that the advice saves in each second: predicted.",
        ["server"],
    )
    labels = ["server", "shared_buffers_bytes", "bound"]
    disk = _gauge(
        "pgsweep_predicted_disk_reads_per_second",
        "Predicted reads from disk at a size of shared_buffers: the bounds of the 90% interval.",
        labels,
    )
    loop = _gauge(
        "pgsweep_predicted_throughput_ratio",
        "Predicted transactions a second at a size of shared_buffers, divided by today's.",
        labels,
    )
    for watched in servers:
        best = best_advice(advised_of(watched))
        if best is None:
            continue
        name, result = watched.config.name, best.result
        advised.of([name], best.size_bytes)
        at.of([name], best.at)
        waiting.of([name], summary_of(watched).waiting_saved_ratio)
        for point in result.points:
            size = str(point.shared_buffers_bytes)
            if result.disk_reads_from != "unknown":
                # Between bounds the middle is no estimate.
                if result.disk_reads_from == "simulated":
                    disk.of([name, size, "estimate"], point.disk_reads_per_second)
                disk.of([name, size, "low"], point.disk_reads_low)
                disk.of([name, size, "high"], point.disk_reads_high)
            loop.of([name, size, "estimate"], point.throughput_ratio)
            loop.of([name, size, "low"], point.throughput_low)
            loop.of([name, size, "high"], point.throughput_high)
    yield from (advised, at, waiting, disk, loop)


def _relations(samples: list[tuple[Watched, TopSample | None]]) -> Iterator[Metric]:
    pool = _gauge(
        "pgsweep_relation_pool_bytes",
        "Bytes of a relation in shared_buffers; `other` is all that are not named.",
        ["server", "database", "schema", "relation"],
    )
    cache = _gauge(
        "pgsweep_relation_page_cache_bytes",
        "Bytes of a relation in the page cache.",
        ["server", "database", "schema", "relation"],
    )
    for watched, sample in samples:
        if sample is None:
            continue
        name = watched.config.name
        named: dict[tuple[str, str, str], list[TopRelation]] = {}
        for relation in sample.relations:
            key = (shown(relation.database), shown(relation.schema), shown(relation.relation))
            named.setdefault(key, []).append(relation)
        for labels, relations in named.items():
            pool.of([name, *labels], sum(each.shared_buffers_bytes for each in relations))
            cache.of([name, *labels], _page_cache(relations))
        unnamed = sample.pool.used_bytes - sum(each.shared_buffers_bytes for each in sample.relations)
        pool.of([name, "", "", "other"], max(0, unnamed))
        if sample.page_cache is not None:
            rest = sample.page_cache.page_cache_bytes - (_page_cache(sample.relations) or 0)
            cache.of([name, "", "", "other"], max(0, rest))
    yield from (pool, cache)


def _page_cache(relations: list[TopRelation]) -> float | None:
    known = [each.page_cache_bytes for each in relations if each.page_cache_bytes is not None]
    return sum(known) if known else None
