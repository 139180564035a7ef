"""A restore that waits: for a server that starts, and for one that is to be restarted."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.cold import empty_caches
from tests.fix_cli import launch, run
from tests.fix_process import busyness, wait_until


class Waiting:
    """A restore in a process of its own that waits for the next start of the server."""

    def __init__(self, conninfo: str, path: Path, folder: Path) -> None:
        self._said = folder / "said"
        words = ("warm", "restore", str(path), conninfo, "--next-start", "60s", "--json")
        with self._said.open("w") as said:
            self.process = launch(*words, stderr=said)

    @property
    def said(self) -> str:
        return self._said.read_text()

    def is_ready(self) -> bool:
        return "waiting until the server is started anew" in self.said


def sessions_of(cluster: Cluster, conninfo: str) -> int:
    """Return how many sessions a database has had, from another database."""
    text = "SELECT sessions FROM pg_stat_database WHERE datname = %s"
    with psycopg.connect(cluster.conninfo()) as connection:
        row = connection.execute(text, [conninfo_to_dict(conninfo)["dbname"]]).fetchone()
    assert row is not None
    return int(row[0])


def test_the_next_start_is_waited_for(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, conninfo, path = heated
    restore = Waiting(conninfo, path, tmp_path)
    wait_until(restore.is_ready)
    begin = sessions_of(cluster, conninfo)
    wait_until(lambda: sessions_of(cluster, conninfo) >= begin + 3)  # it asks, and goes on waiting
    assert restore.process.poll() is None
    empty_caches(cluster)
    answer, _ = restore.process.communicate(timeout=60)
    assert restore.process.returncode == 0, restore.said
    result = json.loads(answer)
    assert result["to_pool_bytes"] > 0  # of the new server: in the old one all was resident
    assert result["after"]["resident"] == 1.0


def test_a_restart_that_is_over_before_the_waiting_begins_is_the_next_start(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    """Loading program and file takes longer than a small server takes to restart."""
    cluster, conninfo, path = heated
    restore = Waiting(conninfo, path, tmp_path)
    restore.process.send_signal(signal.SIGSTOP)
    empty_caches(cluster)
    restore.process.send_signal(signal.SIGCONT)
    answer, _ = restore.process.communicate(timeout=60)
    assert restore.process.returncode == 0, restore.said
    assert json.loads(answer)["after"]["resident"] == 1.0


def test_a_server_that_was_away_is_the_next(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, conninfo, path = heated
    cluster.stop()
    restore = Waiting(conninfo, path, tmp_path)
    wait_until(restore.is_ready)
    cluster.start()
    answer, _ = restore.process.communicate(timeout=60)
    assert restore.process.returncode == 0, restore.said
    assert json.loads(answer)["after"]["resident"] == 1.0


def test_ctrl_c_ends_the_waiting(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    _, conninfo, path = heated
    restore = Waiting(conninfo, path, tmp_path)
    wait_until(restore.is_ready)
    restore.process.send_signal(signal.SIGINT)
    restore.process.communicate(timeout=60)
    assert restore.process.returncode == 130
    assert "ended while it waited for the server" in restore.said


def test_a_server_that_is_not_restarted_in_time(heated: tuple[Cluster, str, Path]) -> None:
    _, conninfo, path = heated
    done = run("warm", "restore", str(path), conninfo, "--next-start", "1s")
    assert done.returncode == 3
    assert "error: the server was not started anew" in done.stderr
    assert "without --next-start" in done.stderr


def test_waiting_does_not_help_where_the_server_refuses(heated: tuple[Cluster, str, Path]) -> None:
    cluster, _, path = heated
    begin = time.monotonic()
    done = run("warm", "restore", str(path), cluster.conninfo("nowhere"), "--wait", "60s")
    assert time.monotonic() - begin < 30 * busyness()
    assert done.returncode == 3
    assert '"nowhere" does not exist' in done.stderr


def test_one_way_of_waiting_at_a_time(heated: tuple[Cluster, str, Path]) -> None:
    _, conninfo, path = heated
    done = run("warm", "restore", str(path), conninfo, "--next-start", "1s", "--wait", "1s")
    assert done.returncode == 2
    assert "leave one of them out" in done.stderr
