"""Each panel of a server's page shows what the records say, of the same sample; so do its CSV and JSON.

The evidence is recorded before `pgsweep serve` starts, so that the first prediction comes at once. Then the
backends of its sessions are stopped by a signal: no further sample comes, and the page can be compared with
the records.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from pgsweep.errors import MissingAbility
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sql import record_sql
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.top import TopRelation
from pgsweep.serve.recording import SAMPLE_BLOCKS
from pgsweep.ui.kit.names import relation_name
from pgsweep.ui.kit.numbers import count, format_bytes, known_bytes, percent
from pgsweep.units import seconds_of
from tests.fix_page import load_running
from tests.fix_serve import Served, Tab, serving

BUFFERS = 128
EVIDENCE_SECONDS = 4.0
FEWEST_PASSES = 4
"""Of the clock hand in the evidence: with fewer there is no prediction."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A pool so small that its clock hand goes round several times a second."""
    with Cluster.create(None, {"shared_buffers": f"{BUFFERS * 8}kB", "autovacuum": "off"}) as made:
        with psycopg.connect(made.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache")
            connection.execute("CREATE TABLE page (id int PRIMARY KEY, filler text, long text)")
            connection.execute("ALTER TABLE page ALTER filler SET STORAGE PLAIN")
            connection.execute(
                "INSERT INTO page SELECT g, repeat('x', 1800), '' FROM generate_series(1, 12000) g"
            )
            connection.execute("VACUUM ANALYZE")
        with load_running(made, "postgres", sessions=1):
            yield made


def record(conninfo: str, path: Path) -> None:
    """Record a piece of evidence that belongs to those that follow."""
    for way in (record_peek, record_sql):
        try:
            way(conninfo, path, seconds=EVIDENCE_SECONDS, rng_seed=1, sample_blocks=SAMPLE_BLOCKS)
        except MissingAbility:
            continue
        return


def blocks_read(connection: psycopg.Connection[Any]) -> int:
    query = "SELECT blks_read FROM pg_stat_database WHERE datname = 'postgres'"
    [(number,)] = connection.execute(query).fetchall()
    return int(number)


@pytest.fixture(scope="module")
def served(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A `pgsweep serve` with a sample of everything, to which nothing is added any more."""
    folder = tmp_path_factory.mktemp("values")
    config = folder / "serve.toml"
    config.write_text(f"[[server]]\nname = 'shop'\nconninfo = {json.dumps(cluster.conninfo())}\n")
    evidence = folder / "history" / "evidence" / "shop"
    evidence.mkdir(parents=True)
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        passes = 0.0
        while passes < FEWEST_PASSES:
            # On a busy machine the load may stand still for seconds.
            shutil.rmtree(evidence / "1.evidence", ignore_errors=True)
            before = blocks_read(connection)
            record(cluster.conninfo(), evidence / "1.evidence")
            passes = (blocks_read(connection) - before) / BUFFERS
    with serving(folder / "history", options=("--config", str(config))) as running:
        running.wait_for("/servers/shop/advice.json", lambda a: a["best"] is not None)
        running.wait_for("/servers/shop/curves.json", lambda c: c["now"][0]["result"]["points"], 180.0)
        running.wait_for("/servers/shop/series.json", lambda s: len(s["at"]) >= 3)
        running.wait_for("/servers/shop/memory.json", lambda m: m is None or len(m["parts"]) == 8)
        pids = backends_of_pgsweep(cluster)
        try:
            for pid in pids:
                send(pid, signal.SIGSTOP)
            # A look that is under way may still end; the history gets it some moments later.
            running.wait_for("/servers/shop/summary.json", lambda s: time.time() - seconds_of(s["at"]) > 3)
            yield running
        finally:
            for pid in pids:
                send(pid, signal.SIGCONT)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a backend, if its session has not ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def backends_of_pgsweep(cluster: Cluster) -> list[int]:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgsweep%'"
        ).fetchall()
    assert rows
    return [pid for (pid,) in rows]


@pytest.fixture(scope="module")
def page(browser: Any, served: Served) -> Iterator[Any]:
    tab = Tab(browser, served)
    before, at = 0.0, served.json("/servers/shop/summary.json")["at"]
    while before != at:
        tab.page.goto(f"{served.address}/servers/shop?range=15m")
        for chart in ("curve", "reads", "sweep"):
            tab.page.locator(f"[data-chart={chart}] canvas").first.wait_for()
        before, at = at, served.json("/servers/shop/summary.json")["at"]
    yield tab.page
    tab.context.close()
    assert tab.complaints == []
    assert tab.elsewhere == []


def texts(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(selector).all_inner_texts()
    return [text.strip() for text in found]


def cells(page: Any, selector: str) -> list[list[str]]:
    """Return the texts of a table's body."""
    found: list[list[str]] = page.eval_on_selector_all(
        f"{selector} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )
    return found


def legend(page: Any, chart: str) -> dict[str, str]:
    """Return what the legend of a chart has, by label."""
    pairs = page.eval_on_selector_all(
        f"[data-chart={chart}] .u-legend .u-series",
        "rows => rows.map(row => [row.querySelector('.u-label').innerText, "
        "row.querySelector('.u-value').innerText])",
    )
    return dict(pairs)


def legends(page: Any, chart: str) -> list[dict[str, str]]:
    """Return what the legend has with the pointer at rest outside, and at places across the chart."""
    found = [legend(page, chart)]
    over = page.locator(f"[data-chart={chart}] .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    for step in range(1, 20):
        page.mouse.move(box["x"] + box["width"] * step / 20, box["y"] + box["height"] / 2)
        found.append(legend(page, chart))
    return found


def number(text: str) -> float | None:
    """Return the number of a legend, which has three digits; None where it has none."""
    match = re.match(r"[\d\s]+(\.\d+)?", text)
    return None if match is None else float(re.sub(r"\s", "", match[0]))


def near(shown: list[float | None], known: list[float | None]) -> bool:
    """Return whether all are equal to three digits."""
    return all(
        a is None if b is None else a is not None and abs(a - b) <= 0.0051 * abs(b)
        for a, b in zip(shown, known, strict=True)
    )


def per_second(series: dict[str, Any], name: str) -> list[float | None]:
    covered = series["columns"]["covered_seconds"]
    return [
        None if value is None or not seconds else value / seconds
        for value, seconds in zip(series["columns"][name], covered, strict=True)
    ]


def split_rows(columns: dict[str, list[float | None]], names: list[str], *, later: bool) -> list[list[Any]]:
    """Return rates over the seconds of a split: as of the last time at which it was known, or of the next."""
    seconds = columns["split_seconds"]
    rows: list[list[Any]] = []
    for i in sorted(range(len(seconds)), reverse=later):
        over, last = seconds[i], rows[-1] if rows else [None] * len(names)
        rows.append([(columns[name][i] or 0.0) / over for name in names] if over else last)
    return rows[::-1] if later else rows


def following(check: Callable[[Any, Served], None]) -> Callable[[Any, Served], None]:
    """Return a test that is tried again: the page follows when the prediction of a longer window comes."""

    @functools.wraps(check)
    def repeated(page: Any, served: Served) -> None:
        until = time.monotonic() + 30
        while True:
            try:
                check(page, served)
            except AssertionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                return

    return repeated


def test_the_facts(page: Any, served: Served) -> None:
    found = served.json("/servers/shop/summary.json")
    rates = ("reads_per_second", "disk_read_bytes_per_second")
    reads, disk = (found[name] for name in rates)
    assert reads > 0
    assert texts(page, "#facts dd") == [
        format_bytes(found["shared_buffers_bytes"]),
        known_bytes(found["used_bytes"]),
        percent(found["hit_ratio"]),
        f"{count(reads)}/s",
        "–" if disk is None else f"{format_bytes(disk)}/s",
    ]


@following
def test_the_curve(page: Any, served: Served) -> None:
    curves = served.json("/servers/shop/curves.json?range=15m")["now"]
    curve = curves[0]
    assert curve["window_seconds"] == 900
    points = {format_bytes(p["shared_buffers_bytes"]): p for p in curve["result"]["points"]}
    sizes = set()
    for shown in legends(page, "curve"):
        point = points.get(shown["shared_buffers"])
        if point is None:  # another window has this size
            assert shown["last 15 min"] == "–", shown
            continue
        sizes.add(shown["shared_buffers"])
        for label, name in (("last 15 min", "miss_ratio"), ("high (90%)", "high"), ("low (90%)", "low")):
            assert shown[label] == f"{100 * point[name]:.2f}%", (shown, point)
    assert len(sizes) > 2
    assert format_bytes(BUFFERS * 8192) in sizes
    nothing = {True: "too early", False: "no prediction"}
    # Windows with the same evidence share a paragraph.
    said = [[one[name] for name in ("result", "why", "early", "failed")] for one in curves]
    told = [one for number, one in enumerate(curves) if number == 0 or said[number] != said[number - 1]]
    levels = [one["result"]["verdict"]["level"] if one["result"] else nothing[one["early"]] for one in told]
    assert [text.split(": ")[1].split(",")[0] for text in texts(page, "#verdict .verdict")] == levels


def test_reads_over_time(page: Any, served: Served) -> None:
    series = served.json("/servers/shop/series.json?range=15m")
    hits, reads = per_second(series, "hits"), per_second(series, "reads")
    labels = ["page cache or disk", "pool (right axis)"]
    rows: list[list[float | None]] = [list(row) for row in zip(reads, hits, strict=True)]
    columns = series["columns"]
    if any(columns["split_seconds"]):
        names = ["page_cache_reads", "disk_reads"] + ["unsplit_reads"] * any(columns["unsplit_reads"])
        lines = ["page cache", "disk", "page cache or disk"][: len(names)]
        labels = ["into the pool", *lines, "pool (right axis)"]
        # Under the pointer a line shows its nearest value, without it the last.
        rows = [
            [read, *row, hit]
            for later in (True, False)
            for read, row, hit in zip(reads, split_rows(columns, names, later=later), hits, strict=True)
        ]
    check_lines(page, "reads", labels, rows)


def test_evictions_and_clock_passes_over_time(page: Any, served: Served) -> None:
    series = served.json("/servers/shop/series.json?range=15m")
    columns = series["columns"]
    moved = per_second(series, "hand_buffers")
    passes = [
        size / 8192 / speed if speed else None
        for size, speed in zip(columns["shared_buffers_bytes"], moved, strict=True)
    ]
    labels, lines = ["evictions"], [per_second(series, "evictions")]
    if any(value is not None for value in passes):
        labels, lines = [*labels, "clock pass (right axis)"], [*lines, passes]
    check_lines(page, "sweep", labels, [list(row) for row in zip(*lines, strict=True)])


def check_lines(page: Any, chart: str, labels: list[str], rows: list[list[float | None]]) -> None:
    """Compare the legend with the newest values, and at other places with those of any time."""
    for place, shown in enumerate(legends(page, chart)):
        assert list(shown) == ["time", *labels]
        values = [number(shown[label]) for label in labels]
        # Where an interval is missing the line is broken.
        if place == 0 or any(value is not None for value in values):
            known = rows[-1:] if place == 0 else rows
            assert any(near(values, row) for row in known), (shown, known)


def test_the_hosts_memory(page: Any, served: Served) -> None:
    memory = served.json("/servers/shop/memory.json")
    if memory is None:
        pytest.skip("needs root or the server's user: its memory is read")
    whole = memory["capacity_bytes"]
    shown = [[row[1], row[2], row[3]] for row in cells(page, "#memory")]
    assert shown == [
        [known_bytes(p["size_bytes"]), percent(p["size_bytes"] / whole), known_bytes(p["twice_bytes"])]
        if p["twice_bytes"]
        else [known_bytes(p["size_bytes"]), percent(p["size_bytes"] / whole), ""]
        for p in memory["parts"]
    ]
    titles = page.locator("#memory svg.bar title").all_text_contents()
    bars = [f"{p['name']}: {known_bytes(p['size_bytes'])}" for p in memory["parts"]]
    assert [title for title in titles if not title.startswith("of it")] == bars


def test_the_relations(page: Any, served: Served) -> None:
    sample = served.json("/servers/shop/relations.json")
    block = sample["block_size_bytes"]
    expected = []
    for r in sample["relations"]:
        size, cached, both = r["size_bytes"], r["page_cache_bytes"], r["both_bytes"]
        neither = None
        if None not in (size, cached, both):
            neither = max(0, size - r["shared_buffers_bytes"] - cached + both)
        change = r["change_bytes_per_second"]
        expected.append([
            *(known_bytes(value) for value in (r["shared_buffers_bytes"], cached, both, neither, size)),
            known_bytes(sum(r["usage_counts"][4:]) * block),
            known_bytes(r["dirty_bytes"]),
            f"{format_bytes(change)}/s" if change else "0",
        ])  # fmt: skip
    rows = cells(page, "#relations")
    assert [row[1:] for row in rows] == expected
    names = [row[0] for row in rows]
    relations = msgspec.convert(sample["relations"], list[TopRelation])
    assert names == [f"{relation_name(r, sample['database'])} {r.kind}" for r in relations]
    assert "page table" in names


def test_the_usage_counts(page: Any, served: Served) -> None:
    pool = served.json("/servers/shop/relations.json")["pool"]
    assert texts(page, "#usage [data-usage]") == [count(number) for number in pool["usage_counts"]]
    assert sum(pool["usage_counts"]) > 0
    sizes = [known_bytes(pool[name]) for name in ("unused_bytes", "dirty_bytes", "pinned_bytes")]
    assert texts(page, "#usage .note")[0].endswith("ago. {} unused, {} dirty, {} pinned.".format(*sizes))


@following
def test_the_advice(page: Any, served: Served) -> None:
    best = served.json("/servers/shop/advice.json")["best"]["result"]
    words = {"leave": "leave it", "unknown": "not known"}
    shown = [row[:3] for row in cells(page, "#advice")]
    assert shown == [
        [one["name"], one["today"] or "–", words.get(one["action"], one["value"])] for one in best["settings"]
    ]
    assert page.text_content("#advice [data-fact=advised]") == shown[0][2]
    facts = texts(page, "#advice .facts dd")
    assert facts[2] == best["verdict"]["level"]
    line = next(s for s in served.json("/overview.json")["servers"] if s["key"] == "shop")
    assert line["advice"] == best["summary"]


def of_series(found: Any) -> list[list[Any]]:
    return [list(row) for row in zip(found["at"], *found["columns"].values(), strict=True)]


def of_curves(found: Any) -> list[list[Any]]:
    return [
        [c["at"], c["window_seconds"], c["covered_seconds"], c["result"]["verdict"]["level"],
         p["shared_buffers_bytes"], p["miss_ratio"], p["low"], p["high"], c["advised_bytes"]]
        for c in [*found["now"], *found["hours"]]
        if c["result"]
        for p in c["result"]["points"]
    ]  # fmt: skip


def of_advice(found: Any) -> list[list[Any]]:
    return [
        [one["at"], one["window_seconds"], one["covered_seconds"], one["result"]["verdict"]["level"],
         *(s[name] for name in ("name", "today", "action", "value", "kind", "reason")),
         *((s["gain"] or {}).get(name) for name in ("of", "value", "low", "high"))]
        for one in found["windows"]
        for s in one["result"]["settings"]
    ]  # fmt: skip


def of_memory(found: Any) -> list[list[Any]]:
    return [[p["name"], p["size_bytes"], p["twice_bytes"]] for p in found["parts"]] if found else []


def of_relations(found: Any) -> list[list[Any]]:
    names = ("database", "schema", "relation", "kind", "shared_buffers_bytes", "page_cache_bytes",
             "both_bytes", "size_bytes", "dirty_bytes", "change_bytes_per_second")  # fmt: skip
    return [[r[name] for name in names] for r in found["relations"]]


def of_consumers(found: Any) -> list[list[Any]]:
    return [list(each.values()) for each in found["consumers"]]


def of_databases(found: Any) -> list[list[Any]]:
    return [
        [at, seconds, one["name"], one["hits"][number], one["reads"][number]]
        for number, (at, seconds) in enumerate(zip(found["at"], found["seconds"], strict=True))
        for one in found["databases"]
        if one["hits"][number] is not None
    ]


def of_shares(found: Any) -> list[list[Any]]:
    return [
        [at, one["database"], one["relation"], one["pool_bytes"][number]]
        for number, at in enumerate(found["at"])
        for one in found["relations"]
        if one["pool_bytes"][number] is not None
    ]


DOWNLOADS: dict[str, Callable[[Any], list[list[Any]]]] = {
    "series": of_series,
    "curves": of_curves,
    "advice": of_advice,
    "memory": of_memory,
    "relations": of_relations,
    "consumers": of_consumers,
    "databases": of_databases,
    "shares": of_shares,
}


@following
def test_the_downloads_of_each_panel(page: Any, served: Served) -> None:
    """CSV has the rows of JSON, value by value."""
    links: list[str] = page.eval_on_selector_all(
        "section .links a", "all => all.map(one => one.getAttribute('href'))"
    )
    paths = {link for link in links if ".csv" in link}
    assert {link.replace(".csv", ".json") for link in paths} == {link for link in links if ".json" in link}
    assert {re.sub(r".*/(\w+)\.csv.*", r"\1", path) for path in paths} == set(DOWNLOADS)
    for path in sorted(paths):
        name = re.sub(r".*/(\w+)\.csv.*", r"\1", path)
        status, headers, text = served.ask(path.removeprefix(served.address))
        assert (status, headers["content-type"].split(";")[0]) == (200, "text/csv")
        found = served.json(path.removeprefix(served.address).replace(".csv", ".json"))
        expected = [["" if cell is None else str(cell) for cell in row] for row in DOWNLOADS[name](found)]
        assert list(csv.reader(io.StringIO(text)))[1:] == expected, path
        if name not in ("consumers", "databases", "memory", "shares"):
            assert expected, path
