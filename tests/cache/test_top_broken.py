"""Faults under `top`: the terminal comes back, and it ends as every command does, with the cause."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run
from tests.fix_cluster import DEBIAN_BINDIR, own_database
from tests.fix_process import wait_until
from tests.fix_screen import screen_of

# What breaks, and how.
_FAULTS = {
    "drawing": """
import pgsweep.ui.live.screen as top
draw, drawn = top.relation_table, []
def broken(*arguments, **options):
    drawn.append(1)
    if len(drawn) > 1:
        secret = "s3cret"
        raise LookupError("the table is not to be drawn")
    return draw(*arguments, **options)
top.relation_table = broken
""",
    "looking": """
import pgsweep.cache.top.live as live
look, looks = live.Live.look, []
def broken(self, **options):
    looks.append(1)
    if len(looks) > 1:
        secret = "s3cret"
        raise LookupError("the pool is not to be looked at")
    return look(self, **options)
live.Live.look = broken
""",
    "a key": """
import pgsweep.ui.live.screen as top
def broken(self):
    raise LookupError("the key has no meaning")
top.TopApp.action_help = broken
""",
}


@pytest.mark.parametrize("where", _FAULTS)
def test_a_fault_ends_with_a_sentence_and_the_terminal_as_it_was(wheel18: Cluster, where: str) -> None:
    with screen_of(
        "top",
        wheel18.conninfo(),
        *("--interval", "0.2s", "--source", "peek"),
        columns=160,
        first=_FAULTS[where],
    ) as screen:
        before = termios.tcgetattr(screen.master)
        if where == "a key":
            screen.wait_for("in pool▼")
            screen.press("?")
        assert screen.wait_end() == 1
        said = screen.text()
        assert "error: unexpected error in pgsweep: LookupError: the" in said, said
        assert "hint: run it again with `--debug`" in said
        assert b"Traceback" not in screen.raw
        assert b"s3cret" not in screen.raw
        assert termios.tcgetattr(screen.master) == before
        assert screen.raw.rfind(b"\x1b[?1049l") > screen.raw.rfind(b"\x1b[?1049h") >= 0
        assert screen.raw.rfind(b"\x1b[?25h") > screen.raw.rfind(b"\x1b[?25l")


def test_a_database_that_is_dropped_is_the_cause(wheel18: Cluster) -> None:
    with own_database(wheel18, "gone", "") as conninfo, psycopg.connect(wheel18.conninfo()) as owner:
        owner.autocommit = True
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(run, "top", "--once", "--interval", "5s", "-d", conninfo)
            seen = (
                "SELECT FROM pg_stat_activity WHERE datname = 'gone' "
                "AND backend_start < clock_timestamp() - interval '1 s'"
            )
            wait_until(lambda: owner.execute(seen).rowcount > 0)
            owner.execute("DROP DATABASE gone WITH (FORCE)")
            failed = done.result()
        owner.execute("CREATE DATABASE gone")
    assert failed.returncode == 3, failed.stderr
    assert "the connection was lost" in failed.stderr
    assert "cause: the database was dropped; the server runs on" in failed.stderr


def test_counting_is_switched_on_by_the_command_that_top_names() -> None:
    """ALTER SYSTEM alone changes nothing before a reload. From 16 on the server counts without it."""
    if not DEBIAN_BINDIR.exists():
        pytest.skip("needs Debian's PostgreSQL 15: apt-get install postgresql-15")
    settings = {"shared_buffers": "16MB", "track_counts": "off", "autovacuum": "off"}
    with Cluster.create(DEBIAN_BINDIR, settings) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        words = ("top", "--once", "--interval", "100ms", "--json", cluster.conninfo())

        def lacking() -> list[str]:
            done = run(*words)
            assert done.returncode == 0, done.stderr
            missing = json.loads(done.stdout)["missing"]
            return [one["enable"] for one in missing if one["what"] == "hits and reads"]

        [hint] = lacking()
        assert "pgsweep doctor -h" in hint
        found = json.loads(run("doctor", "--json", cluster.conninfo()).stdout)["abilities"]
        [command] = [one["enable"] for one in found if one["name"] == "track_counts"]
        path = os.pathsep.join([str(cluster.bindir), os.environ["PATH"]])
        subprocess.run(
            ["sh", "-c", command], check=True, capture_output=True, env={**os.environ, "PATH": path}
        )
        assert lacking() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_puts_the_terminal_back(wheel18: Cluster, number: signal.Signals) -> None:
    with screen_of("top", wheel18.conninfo(), "--interval", "0.2s", "--source", "peek") as screen:
        before = termios.tcgetattr(screen.master)
        screen.wait_for("in pool▼", "cost: ")
        assert termios.tcgetattr(screen.master) != before
        screen.process.send_signal(number)
        assert screen.wait_end() == 130
        assert termios.tcgetattr(screen.master) == before
        assert screen.raw.rfind(b"\x1b[?1049l") > screen.raw.rfind(b"\x1b[?1049h")
        assert screen.raw.rfind(b"\x1b[?25h") > screen.raw.rfind(b"\x1b[?25l")


def test_the_screen_needs_stderr_too(tmp_path: Path) -> None:
    """It is drawn there: with stderr in a file nothing would be seen."""
    elsewhere = f"import os; os.dup2(os.open({str(tmp_path / 'err')!r}, os.O_WRONLY | os.O_CREAT), 2)"
    with screen_of("top", "host=/nowhere", first=elsewhere) as screen:
        screen.process.wait(60)
    assert screen.process.returncode == 2
    assert "stdin, stdout or stderr is not a terminal" in (tmp_path / "err").read_text()
