"""Servers and networks that never end: what arrives without end, and what does not arrive."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from pgsweep.errors import ConnectionFailed, PgsweepError
from pgsweep.pg.catalog.server import read_relations
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session import answers, wire
from pgsweep.pg.session.connect import connect, session_lives
from pgsweep.pg.session.refusals import explained
from tests.fix_cli import PGSWEEP
from tests.fix_process import busyness, wait_until
from tests.fix_proxy import ENDLESS, Plan, Proxy, proxy_before

_SLOWLY = {"drip", "slow notices", "silence", "settings"}
_PASSED = (12, 25, 45)
"""Messages that are passed before: of the start, the set-up of the session, and a query of many rows."""


@pytest.fixture(scope="module")
def proxied(wheel18: Cluster) -> Iterator[tuple[Proxy, str]]:
    with proxy_before(wheel18) as made:
        yield made


@pytest.mark.parametrize("how", [how for how in ENDLESS if how not in _SLOWLY])
@pytest.mark.parametrize("passed", _PASSED)
def test_what_comes_without_end_is_left(proxied: tuple[Proxy, str], how: str, passed: int) -> None:
    proxy, conninfo = proxied
    proxy.plan = Plan(0, 0.0, passed, endless=how)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PgsweepError), connect(conninfo) as connection, explained():
        while True:
            read_relations(connection)
    proxy.cut()
    assert proxy.plan.changes == [how]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 450 << 10


@pytest.mark.slow
def test_notifications_are_not_kept(proxied: tuple[Proxy, str]) -> None:
    """libpq keeps each in four times its bytes; in a process of its own, whose peak nothing else has set."""
    proxy, conninfo = proxied
    proxy.plan = Plan(0, 0.0, 45, endless="notifications")
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pgsweep.errors import PgsweepError\n"
        "from pgsweep.pg.catalog.server import read_relations\n"
        "from pgsweep.pg.session.connect import connect\n"
        "def peak_kb():\n"
        "    return int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])\n"
        "with connect(sys.argv[1]) as connection:\n"
        "    before_kb = peak_kb()\n"
        "    try:\n"
        "        read_relations(connection)\n"
        "    except PgsweepError as error:\n"
        "        print(peak_kb() - before_kb, error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, conninfo], capture_output=True, text=True, check=False, timeout=120
    )
    proxy.cut()
    kb, _, said = done.stdout.partition(" ")
    assert "larger than 64 MB" in said, done.stderr
    assert int(kb) < 30 << 10


@contextmanager
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the limits on time be a twentieth of what they are."""
    with monkeypatch.context() as patch:
        patch.setattr(wire, "_ARRIVING_SECONDS", 1.5)
        patch.setattr(wire, "_LONGEST_ARRIVING_SECONDS", 2.0)
        patch.setattr(wire, "_WORK_SECONDS", 0.5)
        patch.setattr("pgsweep.pg.session.connect._SETUP_SECONDS", 1.0)
        patch.setattr("pgsweep.pg.session.connect._STATEMENT_TIMEOUT_SECONDS", 4.0)
        patch.setattr("pgsweep.pg.session.connect._GRACE_SECONDS", 0.5)
        yield


@pytest.mark.parametrize("how", sorted(_SLOWLY))
@pytest.mark.parametrize("passed", [0, *_PASSED])
def test_what_comes_slowly_is_left(
    proxied: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch, how: str, passed: int
) -> None:
    proxy, conninfo = proxied
    proxy.plan = Plan(0, 0.0, passed, endless=how)
    began = time.monotonic()
    with hasty(monkeypatch), pytest.raises(PgsweepError), connect(conninfo) as connection, explained():
        while True:
            read_relations(connection)
    proxy.cut()
    assert proxy.plan.changes == [how]
    assert time.monotonic() - began < 30 * busyness()


def test_many_slow_answers_share_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them ends before its own limit; together they take more than a session has for arriving."""
    monkeypatch.setattr(wire, "_ARRIVING_SECONDS", 0.5 * min(busyness(), 8.0))
    near, far = socket.socketpair()
    line, done = wire.Wire(), 0

    def slow() -> Generator[tuple[int, int], int, None]:
        """Wait for four bytes, a twentieth of a second apart."""
        for _ in range(4):
            threading.Timer(0.05, far.send, [b"x"]).start()
            ready = 0
            while not ready:
                ready = yield near.fileno(), 1
            near.recv(1)

    with near, far, closing(line), pytest.raises(wire.TooLong):
        while True:
            line.drive(slow(), wire.Limits(1000, time.monotonic() + 60))
            done += 1
            assert done < 50
    assert done >= 1


def test_a_session_that_only_waits_has_no_limit_on_time(wheel18: Cluster) -> None:
    """A statement of a load may be silent for as long as it takes: only what arrives is limited."""
    with connect(wheel18.conninfo(), inspection=False) as connection:
        assert isinstance(connection, answers.CheckedConnection)
        limits = connection._limits()
        assert limits.end is None
        assert not limits.steady
        assert limits.most_bytes == 64 << 20


def test_a_large_honest_answer_is_taken(wheel18: Cluster) -> None:
    """Longer than what is handed over at once, in both directions, and with notices in between."""
    with connect(wheel18.conninfo(), inspection=False) as connection, explained():
        text = "x" * 30_000_000
        row = connection.execute("SELECT %s || %s", [text, "y"]).fetchone()
        assert row is not None
        assert row[0] == text + "y"
        counted = connection.execute("SELECT i, i::text FROM generate_series(1, 300000) AS i").fetchall()
        assert counted[-1] == (300000, "300000")
        heard: list[str | None] = []
        connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
        connection.execute("DO $$ BEGIN FOR i IN 1..20000 LOOP RAISE WARNING 'n %', i; END LOOP; END $$")
        assert heard == [f"n {number}" for number in range(1, 20001)]


def test_a_session_that_the_server_ended_is_seen(wheel18: Cluster) -> None:
    with connect(wheel18.conninfo()) as connection, connect(wheel18.conninfo(), inspection=False) as other:
        assert session_lives(connection)
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
        assert not session_lives(connection)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_closing_says_good_bye(wheel18: Cluster) -> None:
    """The server would note in its log that a client with an open transaction has gone."""
    with connect(wheel18.conninfo(), inspection=False) as watching:
        connection = connect(wheel18.conninfo(), inspection=False)
        pid = connection.info.backend_pid
        connection.execute("BEGIN")
        connection.close()
        query = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        for _ in range(100):
            row = watching.execute(query, [pid]).fetchone()
            if row == (0,):
                break
            time.sleep(0.05)
        assert row == (0,)
    assert f"[{pid}] LOG:  unexpected EOF" not in wheel18.log_tail(50)


def test_a_descriptor_is_not_left_behind(wheel18: Cluster) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    for _ in range(5):
        with connect(wheel18.conninfo()):
            assert open_files() > before
    assert open_files() == before


@pytest.mark.parametrize(
    "words",
    [("record", "--source", "sql", "--for", "1h", "--out", "x.evidence"), ("warm", "run"), ("doctor",)],
)
@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
def test_a_signal_ends_it_while_the_server_is_silent(
    proxied: tuple[Proxy, str], tmp_path: Path, words: tuple[str, ...], numbers: tuple[signal.Signals, ...]
) -> None:
    """Two SIGINT within two seconds, SIGTERM within five: no waiting for the server is longer."""
    proxy, conninfo = proxied
    proxy.plan = Plan(0, 0.0, 70, endless="silence")
    process = subprocess.Popen(
        [PGSWEEP, *words, "-d", conninfo], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: proxy.plan.changes, why="the command waits for an answer")
        for number in numbers:
            began = time.monotonic()
            process.send_signal(number)
            # The first is to be heard before the second comes: pending ones of a kind are one.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        process.wait(20)
        most_seconds = 4 if len(numbers) == 2 else 7  # 2 and 5, on a busy machine
        assert time.monotonic() - began < most_seconds * busyness()
    finally:
        proxy.cut()
        process.kill()
        process.communicate()


def test_a_second_signal_ends_what_does_not_look_at_signals(tmp_path: Path) -> None:
    """The main thread is in a call that no handler interrupts, another one is waited for at the end."""
    text = (
        "import ctypes, threading, time, sys\n"
        "from pgsweep.cli.interrupt import ended_for_sure\n"
        "with ended_for_sure():\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    native = ctypes.CDLL(None)\n"
        "    begin = time.monotonic()\n"
        "    while time.monotonic() - begin < 60:\n"
        "        try:\n"
        "            print('ready', flush=True)\n"
        "            native.sleep(60)\n"
        "        except KeyboardInterrupt:\n"
        "            pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert time.monotonic() - began < 4 * busyness()  # 1.5 s, on a busy machine
    finally:
        process.kill()
        process.communicate()


def test_what_must_be_whole_is_not_cut_by_a_second_signal() -> None:
    text = (
        "import sys, time\n"
        "from pgsweep.cli.interrupt import ended_for_sure, held_back\n"
        "from pgsweep.cli.settings import Settings\n"
        "with ended_for_sure(), held_back(Settings(arguments=[]), 'wait'):\n"
        "    print('ready', flush=True)\n"
        "    end = time.monotonic() + 3\n"
        "    while time.monotonic() < end:\n"
        "        time.sleep(0.1)\n"
        "    print('whole', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert process.communicate(timeout=30)[0] == b"whole\n"
    finally:
        process.kill()
        process.communicate()


def test_the_user_decides_about_keepalives(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"tcp_user_timeout": "0", "keepalives_idle": "7"}
    wire.add_limits(given)
    assert given["tcp_user_timeout"] == "0"
    assert given["keepalives_idle"] == "7"
    assert given["keepalives_count"] == "3"
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "99")
    given = {}
    wire.add_limits(given)
    assert "connect_timeout" not in given


def test_a_handshake_by_the_byte_ends_with_the_connect_timeout() -> None:
    """The server agrees to encrypt, and then sends a byte of its hello now and then."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            with contextlib.suppress(OSError):
                client, _ = listener.accept()
                with client:
                    client.recv(8)
                    client.sendall(b"S")
                    # A record (22, TLS 1.2) with a ServerHello (2).
                    for byte in b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + bytes(100):
                        client.sendall(bytes([byte]))
                        time.sleep(0.6)

        threading.Thread(target=drip, daemon=True).start()
        port = listener.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(ConnectionFailed, match="began no session"):
            connect(f"host=127.0.0.1 port={port} user=x dbname=x sslmode=require connect_timeout=2")
        assert time.monotonic() - began < 10 * busyness()


def test_a_pipeline_has_a_result_for_each_statement(server: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsweep.pg.session.wire._PIECE_BYTES", 64)
    with connect(server.conninfo(), inspection=False) as connection, connection.cursor() as cursor:
        cursor.executemany("SELECT %s::int", [(number,) for number in range(500)])
        assert cursor.rowcount == 500
