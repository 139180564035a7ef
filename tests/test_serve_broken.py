"""`pgsweep serve` with a role without rights, a relation that goes, and a server that is upgraded."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.pg.cluster import Cluster
from tests.fix_serve import Served, serving


def configured(folder: Path, conninfo: str, more: str = "") -> tuple[str, ...]:
    config = folder / "serve.toml"
    config.write_text(f"{more}\n[[server]]\nname = 'one'\nconninfo = {json.dumps(conninfo)}\n")
    return ("--config", str(config))


def page_works(served: Served) -> None:
    for path in ("/", "/servers/one", "/metrics"):
        status, _, text = served.ask(path)
        assert status == 200, text


def test_a_role_without_rights_sees_what_it_may(wheel18: Cluster, tmp_path: Path) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE nobody_much LOGIN")
        connection.execute("CREATE DATABASE seen")
    with psycopg.connect(wheel18.conninfo("seen"), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_buffercache")
        conninfo = make_conninfo(wheel18.conninfo("seen"), user="nobody_much")
        with serving(
            tmp_path / "sql", options=configured(tmp_path, conninfo, "serve.source = 'sql'")
        ) as served:
            down = served.wait_for("/servers/one/summary.json", lambda s: s["state"] == "down")
            assert "may not read pg_buffercache" in down["failure"]["message"]
            assert "GRANT pg_monitor TO nobody_much" in down["failure"]["hint"]
            page_works(served)
            connection.execute("GRANT pg_monitor TO nobody_much")
            served.wait_for("/servers/one/summary.json", lambda s: s["hit_ratio"] is not None)
            page_works(served)
            connection.execute("REVOKE pg_monitor FROM nobody_much")
            served.wait_for("/servers/one/summary.json", lambda s: s["state"] == "down")


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
            until = time.monotonic() + 60
            while served.ask(shown)[0] == 200:  # a map is kept for some seconds
                assert time.monotonic() < until
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
