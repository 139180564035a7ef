"""What `pgsweep serve --alerts` and `--grafana` print: rules for Prometheus, and a dashboard for Grafana."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple


class Alert(NamedTuple):
    """A rule; `expression` and `pause` as Prometheus writes them (also evaluated by alerts.py)."""

    name: str
    expression: str
    pause: str
    severity: str
    summary: str
    description: str


_GONE: Final = "up == 0 and on (job, instance) max_over_time(pgsweep_build_info[1d])"
"""Of what was a pgsweep within the last day; it is `absent` where Prometheus has no such target any more."""

ALERTS: Final = (
    Alert(
        "PgsweepGone",
        f"({_GONE}) or (absent(pgsweep_build_info) unless on () ({_GONE}))",
        "5m",
        "critical",
        "pgsweep itself is gone",
        "Its /metrics cannot be read, so no other of these alerts can fire. Does `pgsweep serve` run?",
    ),
    Alert(
        "PgsweepServerDown",
        "pgsweep_up == 0",
        "2m",
        "critical",
        "pgsweep cannot reach {{ $labels.server }}",
        "No sample has been possible for two minutes. The server's page says why.",
    ),
    Alert(
        "PgsweepLooksStale",
        "time() - pgsweep_collect_timestamp_seconds > 3 * pgsweep_collect_interval_seconds + 30",
        "2m",
        "warning",
        "The last sample of {{ $labels.server }} is old",
        "The server answers slowly, or pgsweep has too little processor time.",
    ),
    Alert(
        "PgsweepHistoryNotWritten",
        "pgsweep_history_failed == 1",
        "5m",
        "warning",
        "The history is not written",
        "Collecting goes on, but the history has a gap: is the disk full?",
    ),
    Alert(
        "PgsweepLargerPoolWouldHelp",
        "pgsweep_predicted_avoidable_reads_per_second > 1000 "
        'and on (server) pgsweep_prediction_verdict{verdict="reliable"} == 1',
        "1h",
        "info",
        "{{ $labels.server }} would read {{ $value | humanize }} fewer blocks a second with twice the "
        "shared_buffers",
        "Predicted from the live workload, for an hour, by a curve that is reliable.",
    ),
    Alert(
        "PgsweepAdviceSavesWaiting",
        "pgsweep_advice_waiting_saved_ratio > 0.1 "
        "and on (server) pgsweep_advised_shared_buffers_bytes != pgsweep_shared_buffers_bytes",
        "1h",
        "info",
        "{{ $labels.server }} would wait {{ $value | humanizePercentage }} of the time less for reads with "
        "the advised shared_buffers",
        "Predicted: seconds of waiting of all sessions, in each second. The server's page has the advice.",
    ),
    Alert(
        "PgsweepPredictionOld",
        "time() - pgsweep_prediction_timestamp_seconds > 3600 and on (server) pgsweep_up == 1",
        "10m",
        "warning",
        "The live curve of {{ $labels.server }} is an hour old",
        "No evidence is recorded, or nothing can be predicted from it. The server's page says why.",
    ),
    Alert(
        "PgsweepHugePagesMissing",
        'pgsweep_huge_pages{state="missing"} > 0',
        "15m",
        "warning",
        "{{ $labels.server }} lacks {{ $value }} huge pages",
        "It runs without them, and would not start where huge_pages is on. pgsweep hugepages says how many.",
    ),
    Alert(
        "PgsweepLittleRoomBelowLimit",
        "pgsweep_memory_room_bytes < 0.05 * pgsweep_memory_limit_bytes",
        "5m",
        "critical",
        "{{ $labels.server }} has {{ $value | humanize1024 }}B left below the limit of its memory cgroup",
        "Beyond it the kernel kills processes. pgsweep memory budget says what takes the memory.",
    ),
    Alert(
        "PgsweepSettingsPendingRestart",
        "pgsweep_settings_pending_restart > 0",
        "1d",
        "info",
        "{{ $value }} settings of {{ $labels.server }} wait for a restart",
        "Their new values come with the next restart, wanted or not. pg_settings.pending_restart names them.",
    ),
    Alert(
        "PgsweepUserMetricFails",
        "pgsweep_user_metric_failed == 1",
        "10m",
        "warning",
        "The query {{ $labels.metric }} fails on {{ $labels.server }}",
        "It is a query of serve.toml.",
    ),
)


class _Panel(NamedTuple):
    title: str
    unit: str
    expressions: tuple[tuple[str, str], ...]
    description: str = ""


_S: Final = '{server=~"$server"}'
_PANELS: Final = (
    _Panel(
        "Predicted miss ratio by size of shared_buffers",
        "percentunit",
        (
            (
                'pgsweep_predicted_pool_miss_ratio{server=~"$server", bound="estimate"}',
                "{{server}} {{shared_buffers_bytes}}",
            ),
        ),
        "Predicted from the last 15 minutes.",
    ),
    _Panel(
        "Reads, by what served them",
        "ops",
        ((f"rate(pgsweep_reads_total{_S}[5m])", "{{server}} {{served}}"),),
        "Blocks a second: measured.",
    ),
    _Panel(
        "Reads that twice the shared_buffers would save",
        "ops",
        ((f"pgsweep_predicted_avoidable_reads_per_second{_S}", "{{server}}"),),
        "Blocks a second: predicted.",
    ),
    _Panel(
        "shared_buffers, today and advised",
        "bytes",
        (
            (f"pgsweep_shared_buffers_bytes{_S}", "{{server}} today"),
            (f"pgsweep_advised_shared_buffers_bytes{_S}", "{{server}} advised"),
        ),
        "Advised from the predictions; the same as today's where it is to be left.",
    ),
    _Panel(
        "Waiting for reads that the advice saves",
        "short",
        ((f"pgsweep_advice_waiting_saved_ratio{_S}", "{{server}}"),),
        "Seconds in each second, of all sessions: predicted.",
    ),
    _Panel(
        "Reads from disk by size of shared_buffers",
        "ops",
        ((f"pgsweep_predicted_disk_reads_per_second{_S}", "{{server}} {{shared_buffers_bytes}} {{bound}}"),),
        "Bounds: predicted.",
    ),
    _Panel(
        "Verdict on the last prediction",
        "short",
        ((f"pgsweep_prediction_verdict{_S} == 1", "{{server}} {{verdict}}"),),
    ),
    _Panel(
        "Relations in the caches",
        "bytes",
        ((f"pgsweep_cached_bytes{_S}", "{{server}} {{where}}"),),
        "Measured.",
    ),
    _Panel(
        "Memory of the host", "bytes", ((f"pgsweep_memory_bytes{_S}", "{{server}} {{part}}"),), "Measured."
    ),
    _Panel(
        "Room below the limit of the memory cgroup",
        "bytes",
        (
            (f"pgsweep_memory_room_bytes{_S}", "{{server}} room"),
            (f"pgsweep_memory_limit_bytes{_S}", "{{server}}"),
        ),
        "Measured. Beyond it processes are killed.",
    ),
    _Panel(
        "Huge pages",
        "short",
        ((f"pgsweep_huge_pages{_S}", "{{server}} {{state}}"),),
        "Measured.",
    ),
    _Panel(
        "Settings that wait for a restart",
        "short",
        ((f"pgsweep_settings_pending_restart{_S}", "{{server}}"),),
    ),
    _Panel(
        "Memory that is not needed for today's throughput",
        "bytes",
        ((f"pgsweep_advised_memory_reclaim_bytes{_S}", "{{server}}"),),
        "Within 2% of it: predicted.",
    ),
    _Panel("Buffers by usage_count", "short", ((f"pgsweep_buffers{_S}", "{{server}} {{usage_count}}"),)),
    _Panel(
        "Evictions",
        "ops",
        ((f"rate(pgsweep_evictions_total{_S}[5m])", "{{server}}"),),
        "A second; PostgreSQL 16 and later.",
    ),
    _Panel("Time of one clock pass", "s", ((f"pgsweep_sweep_period_seconds{_S}", "{{server}}"),)),
    _Panel(
        "Largest relations in the pool",
        "bytes",
        (
            (
                'topk(10, pgsweep_relation_pool_bytes{server=~"$server", relation!="other"})',
                "{{server}} {{schema}}.{{relation}}",
            ),
        ),
    ),
    _Panel("Servers that answer", "short", ((f"pgsweep_up{_S}", "{{server}}"),)),
)


def alert_rules() -> str:
    """Return the rules as YAML; strings are written as JSON, which is YAML too."""
    lines = ["groups:", "- name: pgsweep", "  rules:"]
    for alert in ALERTS:
        lines += [
            f"  - alert: {alert.name}",
            f"    expr: {json.dumps(alert.expression)}",
            f"    for: {alert.pause}",
            "    labels:",
            f"      severity: {alert.severity}",
            "    annotations:",
            f"      summary: {json.dumps(alert.summary)}",
            f"      description: {json.dumps(alert.description)}",
        ]
    return "\n".join(lines) + "\n"


def expressions() -> list[str]:
    """Return all expressions of the dashboard, with every server for `$server`, then those of the alerts."""
    panels = [e.replace("$server", ".*") for panel in _PANELS for e, _ in panel.expressions]
    return panels + [alert.expression for alert in ALERTS]


def grafana_dashboard() -> str:
    """Return the dashboard as JSON for Grafana's import; it asks for the data source."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels: list[dict[str, Any]] = []
    for number, panel in enumerate(_PANELS):
        panels.append({
            "id": number + 1,
            "title": panel.title,
            "description": panel.description,
            "type": "timeseries",
            "datasource": source,
            "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(65 + i), "expr": expression, "legendFormat": legend, "datasource": source}
                for i, (expression, legend) in enumerate(panel.expressions)
            ],
        })  # fmt: skip
    dashboard = {
        "title": "pgsweep",
        "uid": "pgsweep",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    "name": "server",
                    "type": "query",
                    "datasource": source,
                    "query": {"query": "label_values(pgsweep_up, server)", "refId": "servers"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                },
            ]
        },
        "panels": panels,
    }
    return json.dumps(dashboard, indent=2) + "\n"
