"""What `pgsweep serve --alerts` and `--grafana` print: rules for Prometheus, and a dashboard for Grafana.

Alerts and panels stand in rules.toml.
"""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from typing import Any, Final

import msgspec


class Alert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule; `expression` and `pause` as Prometheus writes them (also evaluated by alerts.py)."""

    name: str
    expression: str
    pause: str
    severity: str
    summary: str
    description: str


class _Panel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A panel: its expressions, each with its legend; in them `$S` is the choice of servers."""

    title: str
    unit: str
    expressions: list[tuple[str, str]]
    description: str = ""


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    alert: list[Alert]
    panel: list[_Panel]


_TEXT: Final = resources.files("pgsweep.serve").joinpath("rules.toml").read_text(encoding="utf-8")
_RULES: Final = msgspec.convert(tomllib.loads(_TEXT.replace("$S", '{server=~"$server"}')), _Rules)
ALERTS: Final = _RULES.alert


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
    panels = [e.replace("$server", ".*") for panel in _RULES.panel for e, _ in panel.expressions]
    return panels + [alert.expression for alert in ALERTS]


def grafana_dashboard() -> str:
    """Return the dashboard as JSON for Grafana's import; it asks for the data source."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels: list[dict[str, Any]] = []
    for number, panel in enumerate(_RULES.panel):
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
