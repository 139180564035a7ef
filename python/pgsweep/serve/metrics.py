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
import tomllib
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Final, Literal

import msgspec
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
        found = self._states()
        found.add("build_info", [__version__, platform.python_version()], 1.0)
        for key, watched in self._board.servers.items():
            sample = self._board.sample(key, TopView(sort="pool", limit=self._top_relations))
            if sample is not None:
                _add_relations(found, watched.config.name, sample)
        yield from found.families.values()
        yield from self._user_metrics()

    def states(self) -> Iterator[Metric]:
        """Yield the metrics of servers, but for those of relations."""
        yield from self._states().families.values()
        yield from self._user_metrics()

    def _states(self) -> _Found:
        found = _Found()
        found.add("history_failed", [], 0.0 if self._board.history_trouble() is None else 1.0)
        for watched in self._board.servers.values():
            for part in (_add_state, _add_caches, _add_standing, _add_curve, _add_advice):
                part(found, watched)
            for metric in self._user:
                if metric.name in watched.user_metrics:
                    labels = [watched.config.name, metric.name]
                    failed = watched.user_metrics[metric.name] is None
                    # Of a server that does not answer no query was run.
                    known = watched.failure is None or not failed
                    found.add("user_metric_failed", labels, float(failed) if known else None)
                    interval = watched.user_intervals.get(metric.name)
                    found.add("user_metric_interval_seconds", labels, interval)
        return found

    def _user_metrics(self) -> Iterator[Metric]:
        for metric in self._user:
            help_text = metric.help or f"Query {metric.name} of serve.toml."
            labels = ["server", *metric.labels]
            family = _FAMILIES[metric.type](f"pgsweep_user_{metric.name}", help_text, labels=labels)
            for watched in self._board.servers.values():
                for values, number in watched.user_metrics.get(metric.name) or []:
                    family.add_metric([watched.config.name, *values], number)
            yield family


class _Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metric in metrics.toml; its name stands there without `pgsweep_`."""

    name: str
    help: str
    labels: tuple[str, ...] = ("server",)
    kind: Literal["gauge", "counter"] = "gauge"


_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
_TEXT: Final = resources.files("pgsweep.serve").joinpath("metrics.toml").read_text(encoding="utf-8")
_DECLARED: Final = msgspec.convert(tomllib.loads(_TEXT)["metric"], list[_Declared])


class _Found:
    """All metrics of metrics.toml, with the values that are known."""

    def __init__(self) -> None:
        self.families = {
            one.name: _FAMILIES[one.kind](f"pgsweep_{one.name}", one.help, labels=one.labels)
            for one in _DECLARED
        }

    def add(self, name: str, labels: list[str], value: float | None) -> None:
        """Add a value, if there is one."""
        if value is not None:
            self.families[name].add_metric(labels, value)

    def add_bounds(self, name: str, labels: list[str], middle: float | None, *ends: float | None) -> None:
        """Add an estimate, if there is one, and the bounds of its interval."""
        for bound, value in zip(("estimate", "low", "high"), (middle, *ends), strict=True):
            self.add(name, [*labels, bound], value)


def _add_state(found: _Found, watched: Watched) -> None:
    name, head = [watched.config.name], watched.head
    if watched.state != "starting":
        found.add("up", name, 0.0 if head is None else 1.0)
    if head is not None:
        found.add("collect_duration_seconds", name, head.look_seconds)
        found.add("collect_interval_seconds", name, head.interval_seconds)
        found.add("collect_backend_share_ratio", name, head.backend_share)
        found.add("collect_timestamp_seconds", name, watched.at)


def _add_caches(found: _Found, watched: Watched) -> None:
    name, totals, values = watched.config.name, watched.totals, watched.values
    if "hits" in totals:
        found.add("reads", [name, "pool"], totals["hits"])
        for where in ("page_cache", "disk", "outside_pool"):
            found.add("reads", [name, where], totals.get(f"{where}_reads"))
    found.add("disk_read_bytes", [name], totals.get("disk_read_bytes"))
    found.add("evictions", [name], totals.get("evictions"))
    found.add("shared_buffers_bytes", [name], watched.size_bytes)
    for part in [] if watched.memory is None else watched.memory.parts:
        found.add("memory_bytes", [name, part.name], part.size_bytes)
    if watched.sample is None:
        return
    head = watched.sample.head
    for count, number in enumerate(head.pool.usage_counts):
        found.add("buffers", [name, str(count)], number)
    period = sweep_period(values, head.pool.size_bytes / head.block_size_bytes)
    found.add("sweep_period_seconds", [name], period)
    used, both, page_cache = (values.get(f"{what}_bytes") for what in ("used", "both", "page_cache"))
    if used is not None and both is not None and page_cache is not None:
        found.add("cached_bytes", [name, "pool_only"], max(0.0, used - both))
        found.add("cached_bytes", [name, "page_cache_only"], max(0.0, page_cache - both))
        found.add("cached_bytes", [name, "both"], both)


def _add_standing(found: _Found, watched: Watched) -> None:
    name, standing = watched.config.name, watched.standing
    found.add("advised_memory_reclaim_bytes", [name], summary_of(watched).reclaim_bytes)
    if standing is None:
        return
    found.add("huge_pages", [name, "wanted"], standing.huge_pages_wanted)
    found.add("huge_pages", [name, "used"], standing.huge_pages_used)
    found.add("huge_pages", [name, "missing"], standing.huge_pages_missing)
    found.add("memory_limit_bytes", [name], standing.memory_limit_bytes)
    found.add("memory_room_bytes", [name], standing.memory_room_bytes)
    found.add("settings_pending_restart", [name], len(standing.pending_restart))


def sweep_period(values: dict[str, float], buffers: float) -> float | None:
    """Return the time of one pass of the clock hand over the last interval; None where it is not seen."""
    moved, seconds = values.get("hand_buffers"), values.get("covered_seconds")
    if not moved or not seconds:
        return None
    return buffers * seconds / moved


def _add_curve(found: _Found, watched: Watched) -> None:
    name = watched.config.name
    curve = next((one for one in curves_of(watched) if one.window_seconds == _WINDOW), None)
    if curve is None or curve.result is None:
        return
    for point in curve.result.points:
        labels = [name, str(point.shared_buffers_bytes)]
        found.add_bounds("predicted_pool_miss_ratio", labels, point.miss_ratio, point.low, point.high)
    for word in _VERDICTS:
        found.add("prediction_verdict", [name, word], 1.0 if word == curve.result.verdict.level else 0.0)
    found.add("prediction_timestamp_seconds", [name], curve.at)
    saved = summary_of(watched).avoidable_reads_per_second
    found.add("predicted_avoidable_reads_per_second", [name], saved)


def _add_advice(found: _Found, watched: Watched) -> None:
    best = best_advice(advised_of(watched))
    if best is None:
        return
    name, result = watched.config.name, best.result
    found.add("advised_shared_buffers_bytes", [name], best.size_bytes)
    found.add("advice_timestamp_seconds", [name], best.at)
    found.add("advice_waiting_saved_ratio", [name], summary_of(watched).waiting_saved_ratio)
    for point in result.points:
        labels = [name, str(point.shared_buffers_bytes)]
        if result.disk_reads_from != "unknown":
            # Between bounds the middle is no estimate.
            middle = point.disk_reads_per_second if result.disk_reads_from == "simulated" else None
            ends = point.disk_reads_low, point.disk_reads_high
            found.add_bounds("predicted_disk_reads_per_second", labels, middle, *ends)
        ends_of_ratio = point.throughput_low, point.throughput_high
        found.add_bounds("predicted_throughput_ratio", labels, point.throughput_ratio, *ends_of_ratio)


def _add_relations(found: _Found, name: str, sample: TopSample) -> None:
    named: dict[tuple[str, str, str], list[TopRelation]] = {}
    for relation in sample.relations:
        key = (shown(relation.database), shown(relation.schema), shown(relation.relation))
        named.setdefault(key, []).append(relation)
    for labels, relations in named.items():
        pool_bytes = sum(each.shared_buffers_bytes for each in relations)
        found.add("relation_pool_bytes", [name, *labels], pool_bytes)
        found.add("relation_page_cache_bytes", [name, *labels], _page_cache(relations))
    unnamed = sample.pool.used_bytes - sum(each.shared_buffers_bytes for each in sample.relations)
    found.add("relation_pool_bytes", [name, "", "", "other"], max(0, unnamed))
    if sample.page_cache is not None:
        rest = sample.page_cache.page_cache_bytes - (_page_cache(sample.relations) or 0)
        found.add("relation_page_cache_bytes", [name, "", "", "other"], max(0, rest))


def _page_cache(relations: list[TopRelation]) -> float | None:
    known = [each.page_cache_bytes for each in relations if each.page_cache_bytes is not None]
    return sum(known) if known else None
