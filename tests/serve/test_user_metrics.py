"""Metrics of the user's own on a real server: the limit of their time and the limit of their cost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from pgsweep.errors import PgsweepError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.serve import ServeFailure
from pgsweep.serve.board import Board, Watched
from pgsweep.serve.config import MetricConfig, ServeConfig, ServerConfig
from pgsweep.serve.metrics import exposed
from pgsweep.serve.queries import COST_SHARE, UserMetrics, _values
from tests.fix_process import busyness, wait_until

TIMEOUT_SECONDS = 0.2


class Asked:
    """The user's queries as they run, with what the board gets."""

    def __init__(self, cluster: Cluster, folder: Path, metrics: list[MetricConfig]) -> None:
        server = ServerConfig(key="one", name="one", conninfo=cluster.conninfo())
        config = ServeConfig(servers=[server], host="", port=1, history=folder, evidence=folder)
        self.board = Board(config, ["here"], lambda: None)
        self.metrics = metrics
        self.user = UserMetrics(server, metrics, self.board)

    @property
    def watched(self) -> Watched:
        return self.board.servers["one"]

    def exposed(self) -> list[str]:
        lines = exposed(self.board, self.metrics, 5).decode().splitlines()
        return [line for line in lines if line.startswith("pgsweep_user")]


@contextmanager
def asking(cluster: Cluster, folder: Path, *metrics: MetricConfig) -> Iterator[Asked]:
    asked = Asked(cluster, folder, list(metrics))
    asked.user.start()
    try:
        yield asked
    finally:
        asked.user.ask_to_stop()
        asked.user.join(20)


def test_a_query_beyond_its_timeout_is_ended_by_the_server_and_said(wheel18: Cluster, tmp_path: Path) -> None:
    """It has no value then, the page of metrics says so, and the others go on."""
    slow = MetricConfig(name="slow", query="SELECT 1 AS value, pg_sleep(60)::text", timeout=TIMEOUT_SECONDS)
    quick = MetricConfig(name="quick", query="SELECT 7 AS value", every=1.0)
    begin = time.monotonic()
    with asking(wheel18, tmp_path, slow, quick) as asked:
        wait_until(lambda: len(asked.watched.user_metrics) == 2)
        assert time.monotonic() - begin < 60 * busyness()
        assert asked.watched.user_metrics == {"slow": None, "quick": [((), 7.0)]}
        assert "statement timeout" in asked.watched.user_failures["slow"]
        [missing] = asked.board.summary("one").missing
        assert missing.what == "the metric `slow` of serve.toml"
        assert "statement timeout" in missing.why
        assert [line for line in asked.exposed() if "interval" not in line] == [
            'pgsweep_user_metric_failed{metric="slow",server="one"} 1.0',
            'pgsweep_user_metric_failed{metric="quick",server="one"} 0.0',
            'pgsweep_user_quick{server="one"} 7.0',
        ]
        # While the server is down no query is run: that is one fault, which has its own metric and alert.
        asked.watched.failure = ServeFailure(message="down", cause=None, hint=None, since=1.0)
        assert asked.board.summary("one").missing == []
        assert not [line for line in asked.exposed() if 'failed{metric="slow"' in line]
        asked.watched.failure = None
        with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
            left = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() "
                "AND query LIKE '%pg_sleep(60)%'"
            ).fetchone()
        assert left == (0,), "the server gave it up"


@pytest.mark.parametrize("sleep_seconds", [0.0, 0.15])
def test_a_query_that_costs_too_much_runs_more_rarely(
    wheel18: Cluster, tmp_path: Path, sleep_seconds: float
) -> None:
    """However often it is asked for, it takes a hundredth of one backend's time at most."""
    metric = MetricConfig(
        name="costly", query=f"SELECT 1 AS value FROM pg_sleep({sleep_seconds})", every=1.0, timeout=5.0
    )
    asked = Asked(wheel18, tmp_path, [metric])
    try:
        asked.user._once(metric)  # connects, which is no cost of the query
        begin = time.monotonic()
        due = asked.user._once(metric)
        taken = time.monotonic() - begin
    finally:
        assert asked.user._session is not None
        asked.user._session.close()
    assert asked.watched.user_metrics["costly"] == [((), 1.0)]
    pause = due - begin
    if sleep_seconds:
        assert pause >= sleep_seconds / COST_SHARE == pytest.approx(15.0)
        assert pause > 10 * metric.every
    # The query itself begins within the time taken.
    assert pause <= taken + max(metric.every, taken / COST_SHARE)


def test_what_is_slowed_is_said(wheel18: Cluster, tmp_path: Path) -> None:
    """How far apart the runs are stands beside the metric, for the one that was asked for more often."""
    costly = MetricConfig(name="costly", query="SELECT 1 AS value FROM pg_sleep(0.1)", every=1.0, timeout=5.0)
    quick = MetricConfig(name="quick", query="SELECT 7 AS value", every=300.0)
    with asking(wheel18, tmp_path, costly, quick) as asked:
        wait_until(lambda: len(asked.watched.user_metrics) == 2)
        found = dict(line.rsplit(" ", 1) for line in asked.exposed())
        assert float(found['pgsweep_user_metric_interval_seconds{metric="costly",server="one"}']) >= 10.0
        quick_apart = float(found['pgsweep_user_metric_interval_seconds{metric="quick",server="one"}'])
        assert quick_apart >= 300.0


@pytest.mark.parametrize(
    ("kind", "names", "rows", "said"),
    [
        ("gauge", ["state", "number"], [("a", 1)], "no column `value`"),
        ("gauge", ["value"], [(1,)], "no column `state`"),
        ("gauge", ["state", "value"], [("a", "much")], "`value` is no"),
        ("gauge", ["state", "value"], [("a", float("nan"))], "`value` has nan"),
        ("counter", ["state", "value"], [("a", -1)], "`value` has -1"),
        ("gauge", ["state", "value"], [("a", 1), ("a", 2)], "same labels"),
    ],
)
def test_rows_that_are_no_metric_are_refused(
    kind: Literal["gauge", "counter"], names: list[str], rows: list[tuple[object, ...]], said: str
) -> None:
    metric = MetricConfig(name="orders", query="SELECT", type=kind, labels=["state"])
    with pytest.raises(PgsweepError, match=re.escape(said).replace("is\\ no", "is (no|not a)")):
        _values(metric, names, rows)


def test_a_counter_and_hostile_labels_are_exposed(tmp_path: Path) -> None:
    server = ServerConfig(key="one", name="one", conninfo="")
    config = ServeConfig(servers=[server], host="", port=1, history=tmp_path, evidence=tmp_path)
    board = Board(config, ["here"], lambda: None)
    metric = MetricConfig(name="orders", query="SELECT", type="counter", labels=["state"])
    rows = _values(metric, ["value", "state"], [(3, 'new"\n\\x'), (None, "left out"), (4, None)])
    board.changed("one", "metric", lambda watched: watched.user_metrics.update(orders=rows))
    text = exposed(board, [metric], 5).decode()
    assert "# TYPE pgsweep_user_orders_total counter" in text
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("pgsweep_user_orders"))
    assert len(found) == 2, "nothing is made of NULL, and a label cannot begin a line of its own"
    assert found['pgsweep_user_orders_total{server="one",state=""}'] == "4.0"
    assert "3.0" in found.values()
