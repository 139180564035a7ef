"""Panels of `pgsweep serve` over time: databases, statements by misses, and marks of what happened."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from pgsweep.cache.top.live import Live, ServerCounters
from pgsweep.pg.catalog.counting import Counting
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.cache import Missing
from pgsweep.records.serve import ServeConsumers
from pgsweep.records.top import TopView
from pgsweep.residency.access import opened
from pgsweep.serve.board import Watched, summary_of, trend_of
from pgsweep.serve.config import ServerConfig
from pgsweep.serve.consumers import (
    OTHER_ID,
    POOLED,
    Key,
    Values,
    counted_key,
    largest,
    pooled,
    total_key,
)
from pgsweep.serve.history import Gap, History, Interval, Sample, sqlite_store
from pgsweep.serve.history_reads import read_databases, read_series
from pgsweep.serve.web.pages import render, spark
from pgsweep.units import iso_time, seconds_of
from tests.fix_process import wait_until
from tests.fix_serve import Served, Tab, serving

MB = 1 << 20


DAY = 86_400.0


def keep(folder: Path, *ends: float) -> None:
    """Write twenty minutes before each end: two databases, a restart, two checkpoints."""
    kept = History(sqlite_store(folder / "history.sqlite"), most_bytes=1 << 30)
    for now in ends:
        add_twenty_minutes(kept, now)
    # All is written at once: coarser steps are made of what is there, and old minutes are dropped.
    kept.start()
    assert kept.stop(60.0)


def add_twenty_minutes(kept: History, now: float) -> None:
    for minute in range(20):
        at = now - 60.0 * (20 - minute)
        rows: dict[Key, Values] = {
            counted_key("shop"): {"hits": 900.0, "reads": 100.0},
            counted_key("<b>billing"): {"hits": 60.0, "reads": 20.0},
            ("statement", "<b>anna", "shop", "-77"): {"reads": 80.0, "hits": 20.0, "calls": 4.0},
            ("statement", "bert", "shop", "12"): {"reads": 20.0, "hits": 80.0, "calls": 4.0},
            total_key(): {"reads": 100.0, "hits": 100.0, "calls": 8.0},
            (POOLED, "", "shop", "<b>orders"): {"memory_byte_seconds": 40.0 * MB * 60},
            (POOLED, "", "", OTHER_ID): {"memory_byte_seconds": 8.0 * MB * 60},
        }
        kept.add(Interval("shop", at, 60.0, rows))
        size = 64 * MB if minute < 10 else 128 * MB
        values = {
            "covered_seconds": 10.0,
            "hits": 1000.0,
            "reads": 100.0,
            "shared_buffers_bytes": float(size),
        }
        values["checkpoints"] = 1.0 if minute in (5, 15) else 0.0
        if minute not in (10, 11):
            kept.add(Sample("shop", at, values))
    kept.add(Gap("shop", now - 660, now - 540, "the server is starting up"))


@pytest.fixture(scope="module")
def served(wheel18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("panels")
    config = folder / "serve.toml"
    config.write_text(f"[[server]]\nname = 'shop'\nconninfo = {json.dumps(wheel18.conninfo())}\n")
    (folder / "history").mkdir()
    now = time.time()
    keep(folder / "history", now - 7 * DAY, now - DAY, now)
    with serving(folder / "history", options=("--config", str(config))) as running:
        running.wait_for("/servers/shop/series.json", lambda s: len(s["at"]) >= 3)
        yield running


def test_databases_over_time_are_those_of_the_history(served: Served) -> None:
    found = served.json("/servers/shop/databases.json?range=1h")
    assert found["schema"] == "pgsweep.serve.databases/1"
    names = [one["name"] for one in found["databases"]]
    assert names[:2] == ["shop", "<b>billing"], "most reads first"
    shop = found["databases"][0]
    assert [value for value in shop["hits"] if value is not None][:18] == [900.0] * 18
    assert len(shop["hits"]) == len(shop["reads"]) == len(found["at"]) == len(found["seconds"])
    assert found["at"] == sorted(found["at"])
    assert 60.0 in found["seconds"]
    rows = list(csv.DictReader(io.StringIO(served.ask("/servers/shop/databases.csv?range=1h")[2])))
    assert {row["database"] for row in rows} >= {"shop", "<b>billing"}
    # What is counted of databases is no consumer.
    consumers = served.json("/servers/shop/consumers.json?range=1h")["consumers"]
    assert {"counted", POOLED}.isdisjoint(one["kind"] for one in consumers)
    assert served.ask("/servers/none/databases.json")[0] == 404


def test_times_in_json_are_of_iso_8601(served: Served) -> None:
    def check(value: Any, name: str = "") -> int:
        """Check what is named as a time, and return how many there were."""
        if isinstance(value, dict):
            return sum(check(held, key) for key, held in value.items())
        if isinstance(value, list):
            return sum(check(held, name) for held in value)
        if value is None or name not in ("at", "begin", "end", "since", "changed_at", "failed_at", "next_at"):
            return 0
        assert isinstance(value, str), name
        assert seconds_of(value) > 0
        return 1

    panels = ("summary", "series", "databases", "shares", "curves", "advice", "consumers")
    found = {what: check(served.json(f"/servers/shop/{what}.json?range=1h")) for what in panels}
    assert check(served.json("/overview.json")) >= 2
    assert found["summary"] >= 1
    assert min(found[what] for what in ("series", "databases", "shares")) > 20
    assert found["consumers"] == 2


def test_the_pool_by_relations_over_time(served: Served) -> None:
    found = served.json("/servers/shop/shares.json?range=1h")
    assert found["schema"] == "pgsweep.serve.shares/1"
    assert [(one["database"], one["relation"]) for one in found["relations"][-1:]] == [("", "")], "all others"
    held = {one["relation"]: one["pool_bytes"][:20] for one in found["relations"]}
    assert held["<b>orders"] == [40.0 * MB] * 20
    assert held[""] == [8.0 * MB] * 20
    rows = list(csv.DictReader(io.StringIO(served.ask("/servers/shop/shares.csv?range=1h")[2])))
    assert len([row for row in rows if row["relation"] == "<b>orders"]) == 20
    begin, end = (seconds_of(found[name]) - DAY for name in ("begin", "end"))
    then = served.json(f"/servers/shop/shares.json?begin={iso_time(begin)}&end={end}")
    assert {one["relation"]: set(one["pool_bytes"]) for one in then["relations"]}["<b>orders"] == {40.0 * MB}


def test_what_relations_have_in_the_pool_adds_up() -> None:
    """Also one that is named as what stands for all others."""
    with Cluster.create() as server:
        server.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLE other AS SELECT g FROM generate_series(1, 20000) g")
            connection.execute("CREATE TABLE smaller AS SELECT 1 AS g")
        with opened(server.conninfo()) as access:
            sample = Live(access).look().sample(TopView(sort="pool", limit=2, fold=True))
    rows = largest(pooled(sample, 60.0))
    held = {key[1:]: row["memory_byte_seconds"] / 60.0 for key, row in rows.items()}
    assert sum(held.values()) == sample.pool.used_bytes
    assert held["", "postgres", "public.other"] > 50 * 8192
    assert held["", "", OTHER_ID] > 0
    assert len(rows) == 3


def test_statements_by_misses(served: Served) -> None:
    status, _, text = served.ask("/servers/shop/statements?range=1h")
    assert status == 200
    assert text.index("-77") < text.index(">12<")
    assert "&lt;b&gt;anna" in text
    assert "<b>anna" not in text
    assert "80.00%" in text
    assert "20.00%" in text, "the hit ratio of the first"


def test_statements_that_are_not_counted_say_how_they_would_be() -> None:
    missing = Missing(what="pg_stat_statements", why="it does not exist", enable="CREATE EXTENSION it")
    found = ServeConsumers(
        server="shop", begin=0.0, end=1.0, covered_seconds=1.0, totals=None, consumers=[], missing=[missing]
    )
    text = render("_statements.html.j2", consumers=found)
    assert "<code>CREATE EXTENSION it</code>" in text
    assert "No statement with misses" not in text
    assert "No statement with misses" in render(
        "_statements.html.j2", consumers=msgspec.structs.replace(found, missing=[])
    )


@pytest.mark.parametrize("width", [1440, 800, 390])
def test_the_panels_in_a_browser(served: Served, browser: Any, width: int) -> None:
    tab = Tab(browser, served, viewport={"width": width, "height": 900})
    page = tab.page
    page.goto(f"{served.address}/servers/shop?range=1h")
    for name, first in (("dbhits", "shop"), ("dbreads", "shop"), ("reads", "into the pool")):
        # What is behind today's line has a legend.
        for word in ("a day before", "a week before"):
            page.locator(f"[data-chart={name}] .u-label:text-is('{first}, {word}')").first.wait_for()
    labels = page.locator("[data-chart=dbhits] .u-legend .u-label").all_text_contents()
    assert {"shop", "<b>billing"} <= set(labels)
    words = page.locator("[data-chart=shares] .u-legend tr").all_text_contents()
    # An area has its own size and its share, not the sum with what it stands on.
    assert next(word for word in words if word.startswith("<b>orders")).endswith("40 MB, 31.3%")
    assert next(word for word in words if word.startswith("all others")).endswith("8 MB, 6.3%")
    # At rest the legend has the last time of today, where what is behind goes on.
    assert page.evaluate(
        """() => [...document.querySelectorAll('[data-chart=reads] .u-series')].slice(0, 1)
          .every((row) => new Date(row.querySelector('.u-value').textContent) <= new Date())"""
    )
    page.wait_for_function(
        "document.querySelector('[data-chart=reads] .uplot').dataset.marks.includes('shared_buffers 128 MB')"
    )
    assert "was away" in page.get_attribute("[data-chart=reads] .uplot", "data-marks")
    assert int(page.get_attribute("[data-chart=reads] .uplot", "data-checkpoints")) >= 2
    assert page.locator("[data-statements] tbody tr").count() == 2
    # Nothing is wider than the screen, so nothing is hidden to the right of it.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.context.close()
    assert tab.complaints == []
    assert tab.elsewhere == []


@pytest.mark.parametrize("width", [1440, 800, 390])
def test_the_overview_hides_nothing(served: Served, browser: Any, width: int) -> None:
    """On a phone five of eight columns lay to the right of the screen, without a sign of it."""
    tab = Tab(browser, served, viewport={"width": width, "height": 900})
    tab.page.goto(f"{served.address}/")
    # Asked at once: the table is made anew with each sample.
    cells = tab.page.evaluate(
        """[...document.querySelectorAll('[data-server] td')].map((cell) => {
          const box = cell.getBoundingClientRect();
          return [cell.dataset.label, box.left, box.right, getComputedStyle(cell, '::before').content];
        })"""
    )
    assert len(cells) == 8
    for label, left, right, before in cells:
        assert 0 <= left < right <= width, label
        assert (label in before) == (width <= 800), "beside the value where there is no head"
    lines = tab.page.evaluate(
        """(() => {
          const cell = document.querySelector('[data-advised]');
          cell.innerHTML = '<b>512</b><br><small>-100% time waiting for reads (-100% to -97%)</small> '
            + '<small>rough</small>';
          return [cell.querySelector('b'), cell.lastChild].map((one) => one.getClientRects().length
            * one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).lineHeight));
        })()"""
    )
    assert all(line < 1.5 for line in lines), "a word is not broken to make room for others"
    # The last hour, also from before pgsweep was started.
    trend = served.wait_for("/overview.json", lambda o: o["servers"][0]["trend"])["servers"][0]["trend"]
    assert len([value for value in trend["hit_ratio"] if value == pytest.approx(1000 / 1100)]) >= 15
    tab.page.locator("[data-label='Hit ratio'] .spark").first.wait_for()
    tab.page.locator("[data-label='Reads into the pool'] .spark").first.wait_for()
    assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.context.close()
    assert tab.complaints == []


def test_the_trend_is_the_last_hour() -> None:
    watched = Watched(ServerConfig(key="s", name="s", conninfo=""), "here")
    assert trend_of(watched) is None
    now = time.time() // 60 * 60 + 30
    for minute in range(90):
        watched.note_minute(now - 60 * minute - 10, 10.0, 30.0, float(minute))
        watched.note_minute(now - 60 * minute, 10.0, 30.0, float(minute))
    assert len(watched.minutes) == 60
    found = trend_of(watched)
    assert found is not None
    assert found.begin == pytest.approx(now - 3570, abs=60)
    values = [value for value in found.reads_per_second if value is not None]
    assert values[-1] == 0.0
    assert values[-10] == pytest.approx(9 / 10)
    assert found.hit_ratio[-1] in (None, 1.0)
    assert spark([None, None, 1.0]) == ""
    assert spark([0.0, 4.0, None, 2.0]) == "M0.0 15.0 L15.0 1.0 M45.0 8.0"
    assert spark([0.5, 1.0], ratio=True) == "M0.0 15.0 L30.0 1.0"
    assert spark([1.0, 1.0], ratio=True) == "M0.0 1.0 L30.0 1.0"
    assert spark([0.0, 0.0]) == "M0.0 15.0 L30.0 15.0"


@pytest.mark.parametrize("template", ["_relations.html.j2", "_usage.html.j2"])
def test_a_first_sample_may_come_while_a_page_is_made(wheel18: Cluster, template: str) -> None:
    """What is known of the server is read before, when there was no sample yet."""
    with opened(wheel18.conninfo(), "auto", pool_needed=False) as access:
        sample = Live(access).look().sample(TopView())
    server = summary_of(Watched(ServerConfig(key="s", name="s", conninfo=""), "here"))
    assert server.state == "starting"
    text = render(template, server=server, sample=sample, view=TopView(), key="s")
    assert "Measured <time" in text


def test_coarser_steps_keep_databases(tmp_path: Path) -> None:
    now = time.time()
    keep(tmp_path, now - 3 * 86_400)
    store = sqlite_store(tmp_path / "history.sqlite")
    history = History(store, most_bytes=1 << 30)
    history.start()
    try:
        begin = now - 4 * 86_400

        def reads() -> float:
            found = read_databases(store, "shop", begin, now)
            return sum(value or 0.0 for one in found.databases if one.name == "shop" for value in one.reads)

        wait_until(lambda: reads() == 2000.0)
        assert (
            sum(value or 0.0 for value in read_series(store, "shop", begin, now).columns["checkpoints"])
            == 2.0
        )
    finally:
        history.stop()


def test_a_server_counts_databases_and_checkpoints(wheel18: Cluster) -> None:
    counting = Counting()
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE counted")
        try:
            with opened(wheel18.conninfo(), "auto", pool_needed=False) as access:
                counters = ServerCounters(access, counting)
                first = counters.read(at=time.monotonic(), hand_buffers=None)
                row = connection.execute(
                    "SELECT oid::int8 FROM pg_database WHERE datname = 'counted'"
                ).fetchone()
                assert row is not None
                with psycopg.connect(wheel18.conninfo("counted"), autocommit=True) as inside:
                    inside.execute("CREATE TABLE t AS SELECT g FROM generate_series(1, 20000) g")
                    inside.execute("SELECT count(*) FROM t")
                    inside.execute("CHECKPOINT")

                def seen() -> bool:
                    now = counters.read(at=time.monotonic(), hand_buffers=None)
                    hits = counting.databases.get(row[0], (0.0, 0.0))[0]
                    return now.checkpoints > first.checkpoints and hits > 50

                wait_until(seen)
        finally:
            connection.execute("DROP DATABASE counted WITH (FORCE)")
