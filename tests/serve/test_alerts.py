"""The state of alerts: the rules that Prometheus gets, evaluated without one, and what pages show of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.serve import ServeFailure, ServeStanding
from pgsweep.serve.alerts import Alerts, Vector, holding
from pgsweep.serve.board import Board
from pgsweep.serve.config import MetricConfig, ServeConfig, ServerConfig
from pgsweep.serve.metrics import Metrics
from pgsweep.serve.rules import ALERTS
from tests.fix_serve import Served, Tab, serving

NOW = 7200.0
OWN = [alert for alert in ALERTS if alert.name != "PgsweepGone"]
SERVERS = ("bad", "good")
SAMPLES = {
    'pgsweep_up{server="SERVER"}': (0, 1),
    'pgsweep_collect_timestamp_seconds{server="SERVER"}': (NOW - 61, NOW - 59),
    'pgsweep_collect_interval_seconds{server="SERVER"}': (10, 10),
    'pgsweep_predicted_avoidable_reads_per_second{server="SERVER"}': (1001, 1001),
    'pgsweep_prediction_verdict{server="SERVER", verdict="reliable"}': (1, 0),
    'pgsweep_prediction_verdict{server="SERVER", verdict="refused"}': (0, 1),
    'pgsweep_prediction_timestamp_seconds{server="SERVER"}': (NOW - 4000, NOW - 100),
    'pgsweep_advice_waiting_saved_ratio{server="SERVER"}': (0.5, 0.5),
    'pgsweep_advised_shared_buffers_bytes{server="SERVER"}': (2048, 1024),
    'pgsweep_shared_buffers_bytes{server="SERVER"}': (1024, 1024),
    'pgsweep_huge_pages{server="SERVER", state="missing"}': (7, 0),
    'pgsweep_huge_pages{server="SERVER", state="wanted"}': (7, 7),
    'pgsweep_memory_room_bytes{server="SERVER"}': (40, 51),
    'pgsweep_memory_limit_bytes{server="SERVER"}': (1000, 1000),
    'pgsweep_settings_pending_restart{server="SERVER"}': (2, 0),
    'pgsweep_user_metric_failed{server="SERVER", metric="orders"}': (1, 0),
}


def given() -> dict[str, float]:
    """The series of two servers, one of which every rule finds fault with; and of pgsweep itself."""
    found = {"pgsweep_history_failed": 1.0}
    for name, values in SAMPLES.items():
        found |= {name.replace("SERVER", s): float(v) for s, v in zip(SERVERS, values, strict=True)}
    return found


def samples() -> dict[str, Vector]:
    found: dict[str, Vector] = {}
    for series, value in given().items():
        name, _, labels = series.rstrip("}").partition("{")
        pairs = [label.split("=") for label in labels.split(", ") if label]
        found.setdefault(name, {})[frozenset((k, json.loads(v)) for k, v in pairs)] = value
    return found


@pytest.mark.parametrize("alert", OWN, ids=lambda alert: alert.name)
def test_a_rule_holds_where_it_should(alert: Any) -> None:
    found = holding(alert.expression, samples(), NOW)
    servers = {dict(labels).get("server", "") for labels in found}
    # Its verdict is old, and the server down: what needs a server that is up does not hold.
    wanted = {"PgsweepHistoryNotWritten": {""}, "PgsweepPredictionOld": set()}
    assert servers == wanted.get(alert.name, {"bad"})
    assert not holding(alert.expression, {}, NOW), "nothing holds of what is not known"


def test_rules_hold_where_prometheus_finds_them_to_hold(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine: apt-get install prometheus")
    checks = []
    for alert in OWN:
        left = alert.expression.split()[0]
        name = left.partition("{")[0] if left.startswith("pgsweep_") else ""
        expected = [
            {"labels": name + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels)) + "}", "value": value}
            for labels, value in holding(alert.expression, samples(), NOW).items()
        ]
        checks.append({"expr": alert.expression, "eval_time": "2h", "exp_samples": expected})
    series = [{"series": one, "values": f"{value}x200"} for one, value in given().items()]
    tests = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}]}
    (tmp_path / "test.yml").write_text(json.dumps(tests))
    done = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("text", ["pgsweep_up", "rate(pgsweep_up[5m]) > 1", "1 > 0", "pgsweep_up == 0 == 0"])
def test_another_kind_of_expression_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError, SyntaxError)):
        holding(text, samples(), NOW)


def test_an_alert_fires_when_it_has_held_for_long_enough(tmp_path: Path) -> None:
    servers = [ServerConfig(key=name, name=name, conninfo="") for name in SERVERS]
    config = ServeConfig(servers=servers, host="", port=1, history=tmp_path, evidence=tmp_path)
    board = Board(config, ["here", "there"], lambda: None)
    metrics, alerts = Metrics(board, [MetricConfig(name="orders", query="")], 5), Alerts()

    def now(seconds: float) -> list[tuple[str, str, str, float]]:
        found = alerts.of(metrics.states(), seconds)
        return [(one.name, one.server, one.state, one.since) for one in found if one.server != "good"]

    assert now(990.0) == [], "nothing has been tried yet"
    board.servers["bad"].failure = ServeFailure(message="refused", cause=None, hint=None, since=1000.0)
    assert now(1000.0) == [("PgsweepServerDown", "bad", "pending", 1000.0)]
    assert now(1119.0) == [("PgsweepServerDown", "bad", "pending", 1000.0)]
    assert now(1120.0) == [("PgsweepServerDown", "bad", "firing", 1000.0)]
    board.servers["bad"].standing = ServeStanding(
        huge_pages_wanted=None, huge_pages_used=None, huge_pages_missing=None, memory_limit_bytes=1 << 30,
        memory_room_bytes=5 << 20, pending_restart=["wal_level"],
    )  # fmt: skip
    assert [one[:3] for one in now(1130.0)] == [
        ("PgsweepServerDown", "bad", "firing"),
        ("PgsweepLittleRoomBelowLimit", "bad", "pending"),
        ("PgsweepSettingsPendingRestart", "bad", "pending"),
    ]
    words = {one.name: one.summary for one in alerts.of(metrics.states(), 1130.0) if one.server == "bad"}
    assert "5 MB left" in words["PgsweepLittleRoomBelowLimit"]
    assert words["PgsweepSettingsPendingRestart"].startswith("1 settings of bad")
    board.servers["bad"].standing = None
    assert [one[0] for one in now(1140.0)] == ["PgsweepServerDown"]


@pytest.fixture(scope="module")
def served(wheel18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("alerts")
    config = folder / "serve.toml"
    config.write_text(
        f"[[server]]\nname = 'shop'\nconninfo = {json.dumps(wheel18.conninfo())}\n"
        "[[server]]\nname = 'gone <b>'\nconninfo = 'host=/nowhere dbname=x'\n"
    )
    with serving(folder / "h", options=("--config", str(config))) as running:
        running.wait_for("/servers/shop/summary.json", lambda s: s["state"] == "up")
        yield running


@pytest.mark.parametrize("width", [1440, 800, 390])
def test_the_page_shows_which_alerts_hold(served: Served, browser: Any, width: int) -> None:
    found = served.wait_for("/overview.json", lambda o: {a["server"] for a in o["alerts"]} == {"gone <b>"})
    assert [(one["name"], one["severity"]) for one in found["alerts"]] == [("PgsweepServerDown", "critical")]
    of_shop = served.json("/servers/shop/summary.json")["alerts"]
    assert "PgsweepServerDown" not in {one["name"] for one in of_shop}
    [key] = [server["key"] for server in found["servers"] if server["name"] != "shop"]
    tab = Tab(browser, served, viewport={"width": width, "height": 900})
    for path in ("/", f"/servers/{key}"):
        tab.page.goto(f"{served.address}{path}")
        tab.page.locator("[data-alert=PgsweepServerDown]").first.wait_for()
        # Asked at once: the list is made anew with each sample.
        text, left, right = tab.page.evaluate(
            """() => {
              const row = document.querySelector("[data-alert=PgsweepServerDown]");
              const box = row.getBoundingClientRect();
              return [row.textContent, box.left, box.right];
            }"""
        )
        assert "gone <b>" in text
        assert 0 <= left < right <= width
        assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.page.goto(f"{served.address}/servers/shop")
    tab.page.locator("[data-alerts=none]").first.wait_for()
    tab.context.close()
    assert tab.complaints == []
