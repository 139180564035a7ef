"""`pgsweep serve` with a role without rights, a relation that goes, and a server that is upgraded."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.pg.private.cluster import Cluster
from tests.fix_page import load_running
from tests.fix_process import Patience
from tests.fix_serve import Served, Tab, serving


def configured(folder: Path, conninfo: str, more: str = "") -> tuple[str, ...]:
    config = folder / "serve.toml"
    config.write_text(f"{more}\n[[server]]\nname = 'one'\nconninfo = {json.dumps(conninfo)}\n")
    return ("--config", str(config))


def page_works(served: Served) -> None:
    for path in ("/", "/servers/one", "/metrics"):
        status, _, text = served.ask(path)
        assert status == 200, text


@pytest.fixture(scope="module")
def seen(wheel18: Cluster) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A database under load as a role without rights sees it, and a superuser's session in it."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE nobody_much LOGIN")
        connection.execute("CREATE DATABASE seen")
        with psycopg.connect(wheel18.conninfo("seen"), autocommit=True) as inside:
            inside.execute("CREATE EXTENSION pg_buffercache")
            inside.execute("CREATE TABLE page (id int PRIMARY KEY, filler text, long text)")
            inside.execute("ALTER TABLE page ALTER filler SET STORAGE PLAIN")
            inside.execute(
                "INSERT INTO page SELECT g, repeat('x', 1800), '' FROM generate_series(1, 12000) g"
            )
            with load_running(wheel18, "seen", sessions=1):
                yield make_conninfo(wheel18.conninfo("seen"), user="nobody_much"), inside
        connection.execute("DROP DATABASE seen WITH (FORCE)")
        connection.execute("DROP ROLE nobody_much")


def lines_of(served: Served, metric: str) -> list[str]:
    text = served.ask("/metrics")[2]
    return [line for line in text.splitlines() if re.match(rf"{metric}(_total)?[{{ ]", line)]


OF_THE_BUFFERS = ("pgsweep_buffers", "pgsweep_cached_bytes", "pgsweep_relation_pool_bytes",
                  "pgsweep_relation_page_cache_bytes", "pgsweep_sweep_period_seconds")  # fmt: skip


def test_a_role_without_rights_sees_what_it_may(
    seen: tuple[str, psycopg.Connection[Any]], tmp_path: Path
) -> None:
    """All but the buffers, of which it says what to grant; with the right it goes on by itself."""
    conninfo, superuser = seen
    options = configured(tmp_path, conninfo, "serve.source = 'sql'")
    with serving(tmp_path / "h", options=options) as served:
        found = served.wait_for("/servers/one/summary.json", lambda s: s["hit_ratio"] is not None)
        assert (found["state"], found["failure"], found["database"]) == ("up", None, "seen")
        assert found["server_version"].startswith("18")
        assert found["shared_buffers_bytes"] == 16 << 20
        assert found["reads_per_second"] > 0
        assert (found["pool_source"], found["used_bytes"]) == ("", None)
        assert "may not read pg_buffercache" in found["pool_missing"]["why"]
        assert "GRANT pg_monitor TO nobody_much" in found["pool_missing"]["enable"]
        assert found["pool_missing"] in found["missing"]
        page_works(served)
        assert lines_of(served, "pgsweep_up") == ['pgsweep_up{server="one"} 1.0']
        assert lines_of(served, "pgsweep_shared_buffers_bytes")
        assert float(lines_of(served, "pgsweep_reads")[0].split()[-1]) > 0
        for metric in OF_THE_BUFFERS:
            assert lines_of(served, metric) == [], "what is not known is absent"
        assert served.json("/servers/one/relations.json") is None
        series = served.wait_for("/servers/one/series.json", lambda s: len(s["at"]) >= 2)["columns"]
        assert series["reads"][-1] > 0
        assert series["used_bytes"][-1] is None
        assert "GRANT pg_monitor" in served.ask("/")[2], "the overview says it too"
        memory = served.wait_for("/servers/one/memory.json", lambda found: found is not None)
        names = [part["name"] for part in memory["parts"]]
        assert "shared memory" in names
        assert "shared_buffers" not in names, "which part holds pages is not known"
        assert sum(part["size_bytes"] for part in memory["parts"]) == memory["capacity_bytes"]
        status, _, text = served.ask("/servers/one/map?schema=public&relation=page")
        assert (status, "GRANT pg_monitor TO nobody_much" in text) == (503, True)
        superuser.execute("GRANT pg_monitor TO nobody_much")
        found = served.wait_for("/servers/one/summary.json", lambda s: s["pool_source"] == "sql")
        assert (found["state"], found["pool_missing"]) == ("up", None)
        assert found["used_bytes"] > 0
        for metric in OF_THE_BUFFERS[:1] + OF_THE_BUFFERS[2:3]:
            assert lines_of(served, metric)
        superuser.execute("REVOKE pg_monitor FROM nobody_much")
        served.wait_for("/servers/one/summary.json", lambda s: s["pool_missing"] is not None)


def test_the_page_of_a_role_without_rights_says_what_to_grant(
    seen: tuple[str, psycopg.Connection[Any]], browser: Any, tmp_path: Path
) -> None:
    conninfo, superuser = seen
    panels = ("#advice", "#verdict", "#relations", "#usage")
    with serving(tmp_path / "h", options=configured(tmp_path, conninfo, "serve.source = 'sql'")) as served:
        served.wait_for("/servers/one/summary.json", lambda s: s["hit_ratio"] is not None)
        tab = Tab(browser, served)
        page = tab.page
        page.goto(f"{served.address}/servers/one?range=15m")
        for panel in panels:
            said = page.locator(f"{panel} [data-missing=pool]").inner_text()
            assert "Not known: role nobody_much may not read pg_buffercache" in said
            assert "GRANT pg_monitor TO nobody_much" in said
        assert page.text_content("[data-fact=shared_buffers]") == "16 MB"
        assert "%" in (page.text_content("[data-fact=hit_ratio]") or "")
        page.locator("[data-chart=reads] canvas").first.wait_for()
        page.locator("#verdict [role=alert]:has-text('No evidence is recorded now')").first.wait_for()
        # Granted while it is watched: the open page goes on, and the recording too.
        superuser.execute("GRANT pg_monitor TO nobody_much")
        for gone in (*(f"{panel} [data-missing=pool]" for panel in panels), "#verdict [role=alert]"):
            page.locator(gone).first.wait_for(state="detached")
        page.locator("#relations tbody tr").first.wait_for()
        assert page.locator("#usage [data-usage]").count() == 6
        superuser.execute("REVOKE pg_monitor FROM nobody_much")
        for panel in panels[2:]:
            page.locator(f"{panel} [data-missing=pool]").first.wait_for()
        tab.context.close()
        assert tab.complaints == []


def test_on_the_host_a_role_without_rights_sees_the_pool(wheel18: Cluster, tmp_path: Path) -> None:
    """What is read from the server's memory needs no right of the role."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the server's memory is read")
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE nobody_here LOGIN")
    conninfo = make_conninfo(wheel18.conninfo(), user="nobody_here")
    with serving(tmp_path / "h", options=configured(tmp_path, conninfo)) as served:
        found = served.wait_for("/servers/one/summary.json", lambda s: s["hit_ratio"] is not None)
        assert (found["state"], found["pool_source"]) == ("up", "peek")
        assert found["used_bytes"] > 0
        page_works(served)


def test_a_relation_that_is_dropped_while_it_is_shown(wheel18: Cluster, tmp_path: Path) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE dropping")
    with psycopg.connect(wheel18.conninfo("dropping"), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_buffercache")
        connection.execute("CREATE TABLE going AS SELECT g FROM generate_series(1, 20000) AS g")
        options = configured(tmp_path, wheel18.conninfo("dropping"))
        with serving(tmp_path / "h", options=options) as served:
            listed = "/servers/one/relations.json?filter=going"
            served.wait_for(listed, lambda s: s is not None and s["relations_found"] == 1)
            shown = "/servers/one/map?database=dropping&schema=public&relation=going"
            assert served.ask(shown)[0] == 200
            connection.execute("DROP TABLE going")
            served.wait_for(listed, lambda s: s["relations_found"] == 0)
            until = Patience(60)
            while served.ask(shown)[0] == 200:  # a map is kept for some seconds
                assert until.left() > 0
                time.sleep(0.5)
            status, _, text = served.ask(shown)
            assert status in (400, 503)
            assert "going" in text
            page_works(served)


def test_a_server_that_is_upgraded_while_it_is_watched(
    debian15: Cluster, wheel18: Cluster, tmp_path: Path
) -> None:
    """Another major version at the same address: everything is opened anew."""
    for cluster in (debian15, wheel18):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE upgraded")
        with psycopg.connect(cluster.conninfo("upgraded"), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache")
    address = tmp_path / "socket"
    address.symlink_to(debian15.socket_directory)
    conninfo = make_conninfo(debian15.conninfo("upgraded"), host=str(address))
    with serving(tmp_path / "h", options=configured(tmp_path, conninfo)) as served:
        before = served.wait_for("/servers/one/summary.json", lambda s: s["hit_ratio"] is not None)
        assert before["server_version"].startswith("15")
        served.wait_for("/servers/one/series.json", lambda s: s["at"])
        address.unlink()
        with psycopg.connect(debian15.conninfo(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'upgraded'"
            )
        served.wait_for("/servers/one/summary.json", lambda s: s["state"] == "down")
        address.symlink_to(wheel18.socket_directory)
        after = served.wait_for(
            "/servers/one/summary.json", lambda s: s["state"] == "up" and s["hit_ratio"] is not None
        )
        assert after["server_version"].startswith("18")
        assert after["shared_buffers_bytes"] == 16 << 20
        # Evictions are counted from 16 on: they come with the new version, without a jump of the rest.
        found = served.wait_for(
            "/servers/one/series.json", lambda s: any(v is not None for v in s["columns"]["evictions"])
        )
        assert found["columns"]["evictions"][0] is None
        assert found["gaps"]
        assert all(0 <= value < 1e6 for value in found["columns"]["hits"])
        page_works(served)
