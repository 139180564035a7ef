"""Sessions of `pgsweep serve` over time: passwords that change, servers that hang, a failover, a sleep."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.pg.private.cluster import Cluster
from pgsweep.units import seconds_of
from tests.fix_process import busyness
from tests.fix_serve import serving

SMALL = {"shared_buffers": "4MB", "max_connections": "30"}


def configured(folder: Path, servers: Mapping[str, str]) -> tuple[str, ...]:
    config = folder / "serve.toml"
    config.write_text(
        "".join(
            f"[[server]]\nname = {json.dumps(name)}\nconninfo = {json.dumps(conninfo)}\n"
            for name, conninfo in servers.items()
        )
    )
    return ("--config", str(config))


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A server that may be stopped."""
    with Cluster.create(None, SMALL) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        yield cluster


def test_a_password_that_is_changed_is_read_anew(own: Cluster, tmp_path: Path) -> None:
    rules = own.data_directory / "pg_hba.conf"
    rules.write_text("local all watcher scram-sha-256\n" + rules.read_text())
    passwords = tmp_path / "pgpass"
    passwords.touch(mode=0o600)
    passwords.write_text("*:*:*:watcher:before\n")
    conninfo = make_conninfo(own.conninfo(), user="watcher", passfile=str(passwords))
    with psycopg.connect(own.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE watcher LOGIN PASSWORD 'before'")
        connection.execute("GRANT pg_monitor TO watcher")
        connection.execute("SELECT pg_reload_conf()")
        with serving(tmp_path / "h", options=configured(tmp_path, {"one": conninfo})) as served:
            summary = "/servers/one/summary.json"
            served.wait_for(summary, lambda s: s["state"] == "up")
            connection.execute("ALTER ROLE watcher PASSWORD 'after'")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'watcher'"
            )
            down = served.wait_for(summary, lambda s: s["state"] == "down")
            # The first failure may be that of the session that was ended.
            if "password" not in down["failure"]["message"]:
                down = served.wait_for(
                    summary, lambda s: s["failure"] and "password" in s["failure"]["message"]
                )
            assert "password authentication failed" in down["failure"]["message"]
            assert "pgpass" in down["failure"]["hint"]
            passwords.write_text("*:*:*:watcher:after\n")
            served.wait_for(summary, lambda s: s["state"] == "up")


def test_after_a_failover_the_other_server_is_watched(own: Cluster, wheel18: Cluster, tmp_path: Path) -> None:
    """At the next address of the same connection string; nothing is made of two servers' counters."""
    hosts = f"{own.socket_directory},{wheel18.socket_directory}"
    conninfo = make_conninfo(own.conninfo(), host=hosts, port="5432,5432")
    with serving(tmp_path / "h", options=configured(tmp_path, {"one": conninfo})) as served:
        served.wait_for("/servers/one/series.json", lambda s: len(s["at"]) >= 2)
        assert served.json("/servers/one/summary.json")["shared_buffers_bytes"] == 4 << 20
        own.stop(immediately=True)
        try:
            served.wait_for("/servers/one/summary.json", lambda s: s["shared_buffers_bytes"] == 16 << 20)
            found = served.wait_for(
                "/servers/one/series.json",
                lambda s: s["columns"]["shared_buffers_bytes"][-1:] == [16 << 20] and s["gaps"],
            )
        finally:
            own.start()
        for name in ("hits", "reads", "allocations"):
            assert all(0 <= value < 1e6 for value in found["columns"][name]), name


@contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """Processes that do nothing until the block ends."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_servers_that_hang_delay_no_other(own: Cluster, wheel18: Cluster, tmp_path: Path) -> None:
    """One takes connections and says nothing, one stops in the middle of a session."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = {
            "silent": f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=x",
            "frozen": own.conninfo(),
            "lively": wheel18.conninfo(),
        }
        with serving(tmp_path / "h", options=configured(tmp_path, servers)) as served:
            for name in ("frozen", "lively"):
                served.wait_for(f"/servers/{name}/series.json", lambda s: len(s["at"]) >= 2)
            with psycopg.connect(own.conninfo()) as connection:
                rows = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgsweep%'"
                ).fetchall()
            with frozen([pid for (pid,) in rows]):
                stopped = time.time()
                lively = served.wait_for(
                    "/servers/lively/series.json",
                    lambda s: sum(seconds_of(at) > stopped for at in s["at"]) >= 5,
                )
                # Nothing newer than the look that ran when it stopped.
                last = served.json("/servers/frozen/summary.json")["at"]
                seen = max(lively["at"])
                lively = served.wait_for(
                    "/servers/lively/series.json",
                    lambda s: sum(at > seen for at in s["at"]) >= 5,
                )
                assert served.json("/servers/frozen/summary.json")["at"] == last
                assert served.json("/servers/silent/summary.json")["state"] != "up"
                began = time.monotonic()
                assert served.ask("/")[0] == 200
                assert time.monotonic() - began < 5 * busyness()
            covered = zip(lively["at"], lively["columns"]["covered_seconds"], strict=True)
            assert max(seconds for at, seconds in covered if seconds_of(at) > stopped) < 10
            served.wait_for("/servers/frozen/summary.json", lambda s: s["at"] > last)
            # A session that hangs does not keep it from ending.
            assert served.stop() == 0


def test_after_a_sleep_it_goes_on(wheel18: Cluster, tmp_path: Path) -> None:
    """The time slept is covered by one sample, so rates stay those of the time that has passed."""
    options = configured(tmp_path, {"one": wheel18.conninfo()})
    with serving(tmp_path / "h", options=options) as served:
        known = served.wait_for("/servers/one/series.json", lambda s: len(s["at"]) >= 2)["at"]
        before = seconds_of(known[-1])
        asleep = 4.0
        with frozen([served.process.pid]):
            time.sleep(asleep)
        found = served.wait_for(
            "/servers/one/series.json", lambda s: sum(seconds_of(at) > before + asleep for at in s["at"]) >= 3
        )
        longest = max(
            covered
            for at, covered in zip(found["at"], found["columns"]["covered_seconds"], strict=True)
            if seconds_of(at) > before
        )
        assert longest >= asleep * 0.9
        assert found["gaps"] == []
        assert served.json("/servers/one/summary.json")["state"] == "up"
