"""A signal that ends a command ends its statements too: a server does not notice that a client has gone."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from tests.fix_cli import launch
from tests.fix_process import wait_until
from tests.fix_serve import serving

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def running(cluster: Cluster, mark: str) -> int:
    """Return how many sessions execute a statement with a mark in it."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() "
            "AND query LIKE %s",
            [f"%{mark}%"],
        ).fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize("number", ENDING)
def test_the_statement_of_footprint_is_cancelled(wheel18: Cluster, number: signal.Signals) -> None:
    mark = f"footprint {number.name}"
    statement = f"SELECT pg_sleep(600) /* {mark} */"
    with launch("footprint", statement, wheel18.conninfo()) as process:
        wait_until(lambda: running(wheel18, mark) == 1, 60)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    wait_until(lambda: running(wheel18, mark) == 0, 10)


def test_the_statement_of_a_footprint_that_is_killed_ends_too(server: Cluster) -> None:
    """Nothing of ours can cancel it: the server looks whether its client is still there."""
    mark = "footprint killed"
    with launch("footprint", f"SELECT pg_sleep(600) /* {mark} */", server.conninfo()) as process:
        wait_until(lambda: running(server, mark) == 1, 60)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    wait_until(lambda: running(server, mark) == 0, 20)


@pytest.mark.parametrize("number", ENDING)
def test_the_statements_of_other_threads_are_cancelled(
    wheel18: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    """Those of `serve` are all sent by other threads than the one that gets the signal."""
    mark = "pgsweep_user_query"  # its rows are fetched from a cursor of this name
    (tmp_path / "serve.toml").write_text(
        '[[metric]]\nname = "slow"\nquery = "SELECT 1 AS value, pg_sleep(600)::text"\n'
        "every = 1\ntimeout = 60\n"
    )
    options = ("--config", str(tmp_path / "serve.toml"))
    with serving(tmp_path / "state", wheel18.conninfo(), options=options) as served:
        wait_until(lambda: running(wheel18, mark) == 1, 60)
        served.process.send_signal(number)
        served.process.wait(60)
    wait_until(lambda: running(wheel18, mark) == 0, 10)


@pytest.mark.parametrize("number", ENDING)
def test_serve_ends_by_a_signal_that_comes_before_it_listens(
    wheel18: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    first = (
        "import os, uvicorn\n"
        "run = uvicorn.Server.run\n"
        "def begun(*args, **more):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    return run(*args, **more)\n"
        "uvicorn.Server.run = begun\n"
    )
    with serving(tmp_path, wheel18.conninfo(), first=first) as served:
        assert served.process.wait(60) == 0


def test_the_statements_of_a_serve_that_is_killed_end_too(wheel18: Cluster, tmp_path: Path) -> None:
    mark = "metric killed"
    (tmp_path / "serve.toml").write_text(
        f'[[metric]]\nname = "slow"\nquery = "SELECT 1 AS value, pg_sleep(50)::text /* {mark} */"\n'
        "every = 1\ntimeout = 60\n"
    )
    options = ("--config", str(tmp_path / "serve.toml"))
    with serving(tmp_path / "state", wheel18.conninfo(), options=options) as served:
        wait_until(lambda: running(wheel18, "pgsweep_user_query") == 1, 60)
        served.process.kill()
        served.process.wait(60)
    wait_until(lambda: running(wheel18, "pgsweep_user_query") == 0, 20)


STUCK = """
import sys, threading, time
from pgsweep.cli import app
from pgsweep.pg.session.connect import connect

def work(mark):
    with connect(sys.argv[1], inspection=False) as session:
        session.execute(f"SELECT pg_sleep(600) /* {mark} */")

class Group:
    def main(self, **_):
        for number in range(3):
            threading.Thread(target=work, args=[f"{sys.argv[2]} {number}"], daemon=True).start()
        print(sys.stdin.readline())
        raise KeyboardInterrupt

app.application = Group()
sys.exit(app.run([]))
"""


def test_threads_that_nobody_waits_for_leave_no_statement(wheel18: Cluster) -> None:
    """As after a second Ctrl-C: the command ends at once, and its threads are where they are."""
    mark = "nobody waits"
    with Popen([sys.executable, "-c", STUCK, wheel18.conninfo(), mark], stdin=PIPE, text=True) as process:
        wait_until(lambda: running(wheel18, mark) == 3)
        process.communicate("\n", timeout=60)
    assert process.returncode == 130
    wait_until(lambda: running(wheel18, mark) == 0, 10)


LARGE_ANSWERS = """
import sys
from pgsweep.cli import app
from pgsweep.pg.session import connect

connect._ALWAYS["tcp_user_timeout"] = sys.argv[2]

class Group:
    def main(self, **_):
        with connect.connect(sys.argv[1]) as session:
            while True:
                session.execute("SELECT pg_catalog.repeat('x', 1000000) FROM generate_series(1, 20)")

app.application = Group()
sys.exit(app.run([]))
"""


def test_a_command_that_is_suspended_keeps_no_snapshot(wheel18: Cluster) -> None:
    """The server would wait for it in the middle of an answer, and no timeout ends that."""

    def is_suspended() -> bool:
        return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    mark = "repeat('x'"
    with Popen([sys.executable, "-c", LARGE_ANSWERS, wheel18.conninfo(), "0"], stderr=DEVNULL) as process:
        try:
            for _ in range(5):
                wait_until(lambda: running(wheel18, mark) == 1)
                process.send_signal(signal.SIGTSTP)
                wait_until(is_suspended)
                assert running(wheel18, mark) == 0
                process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()


@pytest.mark.slow
def test_a_client_that_is_stopped_is_left_by_tcp() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"shared_buffers": "8MB", "listen_addresses": "127.0.0.1", "port": port}
    with Cluster.create(settings=settings):
        at = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        for inspection in (True, False):
            with connect(at, inspection=inspection) as session:
                assert session.execute("SHOW tcp_user_timeout").fetchone() == ("120000",)
                assert session.execute("SHOW tcp_keepalives_idle").fetchone() == ("30",)
        with psycopg.connect(at, autocommit=True) as watcher:

            def waits() -> int:
                row = watcher.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
                ).fetchone()
                assert row is not None
                return int(row[0])

            with Popen([sys.executable, "-c", LARGE_ANSWERS, at, "3s"], stderr=DEVNULL) as process:
                try:
                    wait_until(lambda: waits() == 1)
                    process.send_signal(signal.SIGSTOP)
                    wait_until(lambda: waits() == 1)
                    wait_until(lambda: waits() == 0)
                finally:
                    process.kill()
