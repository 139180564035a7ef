"""`pgsweep memory` against real servers: who costs what, and sums that the kernel's own accounts confirm."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.errors import MissingAbility
from pgsweep.host.procfile import parse_fields
from pgsweep.memory.budget import budget
from pgsweep.memory.processes import connection_cost, look, opened
from pgsweep.pg.catalog.server import ServerProcess
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.memory import MemoryProcess, MemoryResult
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json, to_json
from pgsweep.ui.views.memory import memory_text
from tests.fix_cli import launch, run
from tests.fix_process import needs_cgroup, needs_root, wait_until

KB = 1024
BACKGROUND = {"postmaster", "checkpointer", "background writer", "walwriter", "logical replication launcher"}


def look_at(conninfo: str, *, top: int | None = None, queries: bool = False) -> MemoryResult:
    with opened(conninfo) as server:
        return look(server, top=top, queries=queries)


@contextmanager
def sessions(conninfo: str, count: int) -> Iterator[list[psycopg.Connection]]:
    with ExitStack() as closing:
        yield [closing.enter_context(psycopg.connect(conninfo, autocommit=True)) for _ in range(count)]


def test_every_process_is_there_and_named(server: Cluster) -> None:
    conninfo = make_conninfo(server.conninfo(), application_name="shop")
    with sessions(conninfo, 3) as clients:
        clients[0].execute("SELECT   'many\n   spaces'")
        result = look_at(server.conninfo(), queries=True)
        kinds = {process.kind for process in result.processes}
        assert kinds >= BACKGROUND | {"client backend"}
        assert "unknown" not in kinds
        by_pid = {process.server_pid: process for process in result.processes}
        first = by_pid[clients[0].info.backend_pid]
        assert (first.user, first.database, first.application) == ("postgres", "postgres", "shop")
        assert (first.state, first.query) == ("idle", "SELECT 'many spaces'")
        assert sum(process.own for process in result.processes) == 1
        assert result.connections == 3
        assert result.cost is not None
        assert result.cost.connections == 3
    children = subprocess.run(
        ["ps", "--no-headers", "-o", "pid", "--ppid", str(server.postmaster_pid)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {int(pid) for pid in children.stdout.split()} < {process.pid for process in result.processes}


def test_the_sums_are_sums(wheel18: Cluster) -> None:
    result = look_at(wheel18.conninfo())
    totals = result.totals
    assert totals.real_bytes == (
        (totals.shared_memory_bytes or 0) + (totals.private_bytes or 0) + totals.page_tables_bytes
    )
    assert totals.private_bytes == sum(process.private_bytes or 0 for process in result.processes)
    assert totals.rss_bytes == sum(process.rss_bytes for process in result.processes)
    for process in result.processes:
        assert process.cost_bytes == (process.private_bytes or 0) + process.page_tables_bytes
    costs = [process.cost_bytes or 0 for process in result.processes]
    assert costs == sorted(costs, reverse=True)


def test_the_largest_of_the_processes_and_the_sums_of_all(wheel18: Cluster) -> None:
    def look_at_both() -> bool:
        whole, few = look_at(wheel18.conninfo()), look_at(wheel18.conninfo(), top=2)
        assert len(few.processes) == 2
        # Sessions and workers of the server come and go between two looks.
        return few.hidden == len(whole.processes) - 2 and few.totals.rss_bytes == pytest.approx(
            whole.totals.rss_bytes, rel=0.2
        )

    wait_until(look_at_both)


def test_private_memory_of_a_session_is_seen(wheel18: Cluster) -> None:
    """A sort in work_mem, held by an open cursor, beside an idle session."""
    with sessions(wheel18.conninfo(), 2) as (idle, busy):
        busy.execute("SET work_mem = '64MB'")
        busy.execute("BEGIN")
        busy.execute(
            "DECLARE c CURSOR FOR "
            "SELECT g, repeat('x', 100) FROM generate_series(1, 100000) g ORDER BY 1 DESC"
        )
        busy.execute("FETCH 1 FROM c")
        result = look_at(wheel18.conninfo())
        by_pid = {process.server_pid: process for process in result.processes}
        few, many = (by_pid[session.info.backend_pid].private_bytes or 0 for session in (idle, busy))
        assert 10 << 20 < many - few < 64 << 20
        assert result.cost is not None
        assert result.cost.worst_pid == by_pid[busy.info.backend_pid].pid


def test_touching_the_pool_costs_page_tables_and_rss_misleads() -> None:
    """Experiment 5 in small: RSS grows by what was touched, the cost by an eight-byte entry a page."""
    settings = {"shared_buffers": "256MB", "huge_pages": "off", "autovacuum": "off"}
    settings["max_parallel_workers_per_gather"] = "0"
    with Cluster.create(settings=settings) as cluster, sessions(cluster.conninfo(), 2) as (fresh, touched):
        fresh.execute("SELECT 1")
        # Below a quarter of the pool, so that a scan uses no ring.
        touched.execute("CREATE TABLE t AS SELECT g, repeat('x', 900) AS f FROM generate_series(1, 50000) g")
        touched.execute("SELECT count(*) FROM t")
        result = look_at(cluster.conninfo())
        by_pid = {process.server_pid: process for process in result.processes}
        one, other = (by_pid[session.info.backend_pid] for session in (fresh, touched))
    more = (other.shared_touched_bytes or 0) - (one.shared_touched_bytes or 0)
    assert more > 40 << 20
    assert other.rss_bytes - one.rss_bytes > more
    assert other.page_tables_bytes - one.page_tables_bytes == pytest.approx(more / 512, abs=24 * KB)
    assert (other.cost_bytes or 0) - (one.cost_bytes or 0) < more / 10


def test_p95_is_the_nearest_rank() -> None:
    rows = [row(n, n * 1000) for n in range(1, 41)]
    cost = connection_cost(rows)
    assert cost is not None
    assert (cost.connections, cost.mean_bytes, cost.p95_bytes, cost.worst_bytes, cost.worst_pid) == (
        40,
        20500,
        38000,
        40000,
        40,
    )
    assert connection_cost([]) is None
    assert connection_cost([*rows, row(41, None)]) is None


def row(pid: int, cost_bytes: int | None) -> MemoryProcess:
    return MemoryProcess(
        pid=pid,
        server_pid=pid,
        kind="client backend",
        user="app",
        database="shop",
        application=None,
        state="idle",
        query=None,
        private_bytes=cost_bytes,
        page_tables_bytes=0,
        cost_bytes=cost_bytes,
        shared_touched_bytes=0,
        huge_pages_bytes=None,
        swap_bytes=0,
        rss_bytes=0,
        method="smaps",
    )


def test_a_role_without_rights_sees_the_memory_but_not_the_queries(server: Cluster) -> None:
    with sessions(server.conninfo(), 1) as (admin,):
        admin.execute("CREATE ROLE guest LOGIN")
        try:
            result = look_at(make_conninfo(server.conninfo(), user="guest"))
        finally:
            admin.execute("DROP ROLE guest")
        by_pid = {process.server_pid: process for process in result.processes}
        other = by_pid[admin.info.backend_pid]
        assert (other.kind, other.user, other.query, other.state) == (
            "client backend",
            "postgres",
            None,
            None,
        )
        assert other.cost_bytes
        assert {process.kind for process in result.processes} >= BACKGROUND
        assert [entry.what for entry in result.missing] == ["what other roles' sessions do"]
        assert "pg_monitor" in result.missing[0].why


@needs_root
@pytest.mark.parametrize("by", ["socket", "tcp"])
def test_a_user_who_may_not_look_gets_nulls_or_a_reason(by: str) -> None:
    """By the socket the server is known to be here: what anybody may read is shown. By TCP it may be any."""
    settings = {"shared_buffers": "8MB", "listen_addresses": "127.0.0.1", "port": "54823"}
    script = textwrap.dedent("""
        import os, sys
        import encodings.idna, pwd
        from pgsweep.memory.processes import look, opened
        from pgsweep.ui.results import to_json
        from pgsweep.errors import MissingAbility
        os.setgroups([]); os.setgid(54321); os.setuid(54321)
        try:
            with opened(sys.argv[1]) as server:
                print(to_json(look(server)))
        except MissingAbility as error:
            print(error.message, "|", error.hint)
            sys.exit(error.exit_code)
    """)
    with Cluster.create(settings=settings) as cluster:
        conninfo = make_conninfo(cluster.conninfo(), port=54823)
        if by == "tcp":
            conninfo = make_conninfo(conninfo, host="127.0.0.1")
        else:
            cluster.socket_directory.chmod(0o777)
            cluster.run_directory.chmod(0o755)
            cluster.run_directory.parent.chmod(0o755)
            (cluster.socket_directory / ".s.PGSQL.54823").chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", script, conninfo], capture_output=True, text=True, check=False, cwd="/"
        )
    if by == "tcp":
        assert done.returncode == 4, done.stderr
        assert "sudo" in done.stdout
        return
    assert done.returncode == 0, done.stderr
    result = from_json(done.stdout.encode(), "-")
    assert isinstance(result, MemoryResult)
    assert {process.private_bytes for process in result.processes} == {None}
    assert result.cost is None
    assert result.totals.real_bytes is None
    assert result.totals.page_tables_bytes > 0
    assert result.missing[0].what == "private memory"


def test_a_server_that_does_not_run_here(wheel18: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is not among this host's: a backend's id that nobody has stands for another host."""
    import pgsweep.memory.processes

    elsewhere = ServerProcess(backend_pid=4194304, start_time_us=1)
    monkeypatch.setattr(pgsweep.memory.processes, "read_postmaster", lambda _connection: elsewhere)
    with pytest.raises(MissingAbility) as raised, opened(wheel18.conninfo()):
        pass
    assert raised.value.exit_code == 4
    assert raised.value.hint


def settled(look: Callable[[], int]) -> int:
    """Return what a look gives as soon as it gives nearly the same for a while.

    The kernel takes back what a process had some time after the process has gone.
    """
    found = [look()]

    def steady() -> bool:
        found.append(look())
        return len(found) > 10 and max(found[-10:]) - min(found[-10:]) < 256 << 10

    wait_until(steady)
    return found[-1]


@needs_root
@needs_cgroup
def test_the_cost_of_a_connection_is_what_the_kernel_charges() -> None:
    """The memory cgroup's usage with N connections and without, page cache aside; in the same run.

    Our number leaves out what the kernel keeps of a process beside its page tables (stack, task, sockets:
    about 50 kB), so it is a little below.
    """
    count = 60
    settings = {"shared_buffers": "32MB", "max_connections": "80", "autovacuum": "off", "huge_pages": "off"}
    with Cluster.create(settings=settings, memory_limit_bytes=2 << 30) as cluster:
        group = cluster.memory_cgroup
        assert group is not None

        def used() -> int:
            return group.usage_bytes() - group.page_cache_bytes()

        def at_work() -> list[psycopg.Connection]:
            made = [psycopg.connect(cluster.conninfo(), autocommit=True) for _ in range(count)]
            for session in made:
                session.execute("SELECT count(*) FROM touch")
                session.execute("SELECT count(*) FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid")
            return made

        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute(
                "CREATE TABLE touch AS SELECT g, repeat('x', 900) AS f FROM generate_series(1, 20000) g"
            )
            admin.execute("VACUUM (FREEZE) touch")
            # Once before, so that what the server itself keeps of having had so many sessions is there.
            first = at_work()
            gone = [session.info.backend_pid for session in first]
            for session in first:
                session.close()
            wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in gone))
            before = settled(used)
            clients = at_work()
            pids = {session.info.backend_pid for session in clients}
            charged = (settled(used) - before) / count
            result = look_at(cluster.conninfo())
            mine = [process.cost_bytes or 0 for process in result.processes if process.server_pid in pids]
            for session in clients:
                session.close()
    assert len(mine) == count
    assert sum(mine) / count == pytest.approx(charged, rel=0.05)
    assert result.totals.rss_bytes > 5 * (result.totals.real_bytes or 0)


def test_the_command(wheel18: Cluster) -> None:
    done = run("memory", wheel18.conninfo(), "--json", "--top", "3")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == "pgsweep.memory/1"
    assert len(data["processes"]) == 3
    text = run("memory", wheel18.conninfo()).stdout
    assert "sum of RSS" in text
    assert "checkpointer" in text
    csv = run("memory", wheel18.conninfo(), "--csv").stdout.splitlines()
    assert csv[0].startswith("pid,server_pid,kind,")
    wrong = run("memory", wheel18.conninfo(), "--watch", "--json")
    assert wrong.returncode == 2


def test_where_the_kernel_reports_no_page_tables_that_is_said(
    wheel18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel such as gVisor's has no VmPTE in /proc/PID/status: what is missing is not a measured 0."""
    assert "page tables" not in [entry.what for entry in look_at(wheel18.conninfo()).missing]
    no_tables = {"VmPTE": "", "VmPMD": ""}
    monkeypatch.setattr("pgsweep.host.procmem.parse_fields", lambda text: parse_fields(text) | no_tables)
    result = look_at(wheel18.conninfo())
    assert "page tables" in [entry.what for entry in result.missing]
    assert result.totals.page_tables_bytes == 0


@pytest.mark.parametrize("name", ["", "shop"])
def test_sessions_of_pgsweep_are_none_of_the_applications(server: Cluster, name: str, tmp_path: Path) -> None:
    """Two that watch, under pgsweep's name or the user's, beside one client that is smaller than they are."""
    conninfo = server.conninfo()
    watch = ("memory", conninfo, "--watch", "--interval", "200ms")
    record = (
        "record",
        conninfo,
        "--source",
        "sql",
        "--for",
        "10min",
        "--out",
        str(tmp_path / "a.evidence"),
    )
    with sessions(conninfo, 1) as (client,), ExitStack() as watching:
        pids = {client.info.backend_pid}
        for words in (watch, record):
            command = launch(
                *words,
                env={"PGAPPNAME": name} if name else None,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            watching.enter_context(command)
            watching.callback(command.send_signal, signal.SIGINT)

        found: list[MemoryResult] = []

        def they_are_known() -> bool:
            found.append(look_at(conninfo))
            return found[-1].pgsweep_sessions >= 3 and found[-1].connections == 1

        # Until they have begun, one may be a session that has not said anything yet.
        wait_until(they_are_known)
        result = found[-1]
        assert result.cost is not None
        assert result.cost.connections == 1
        assert {p.server_pid for p in result.processes if p.kind == "client backend" and not p.own} == pids
        with opened(conninfo) as local:
            assert budget(local, ram_bytes=1 << 30).connections == 1
    assert f" {result.pgsweep_sessions} of pgsweep are left out" in memory_text(result, Terminal())


def test_watching_ends_with_ctrl_c(wheel18: Cluster) -> None:
    words = ("memory", wheel18.conninfo(), "--watch", "--interval", "200ms")
    with launch(*words, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen += line.startswith("PostgreSQL ") and f" at {wheel18.socket_directory}, port " in line
            if seen == 3:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_the_text_fits_a_terminal_and_says_why_rss_misleads(wheel18: Cluster) -> None:
    with sessions(wheel18.conninfo(), 1):
        result = look_at(wheel18.conninfo())
    text = memory_text(result, Terminal(width=80, interactive=True))
    lines = [line for line in text.splitlines() if not line.startswith("shared memory, once")]
    assert max(map(len, lines)) <= 80
    assert "misleads" in text
    assert from_json(to_json(result).encode(), "-") == result


def test_statements_of_sessions_come_only_when_asked_for(wheel18: Cluster, tmp_path: Path) -> None:
    files = [tmp_path / f"memory{suffix}" for suffix in (".json", ".html", ".csv", ".txt")]
    wanted = [word for file in files for word in ("-o", str(file))]
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as other:
        other.execute("SELECT 'TopSecret'")
        without = run("memory", wheel18.conninfo(), *wanted)
        assert without.returncode == 0, without.stderr
        assert [file for file in files if "TopSecret" in file.read_text()] == []
        assert "TopSecret" not in without.stdout
        (tmp_path / "ordinary").touch()
        assert {file.stat().st_mode for file in files} == {(tmp_path / "ordinary").stat().st_mode}
        done = run("memory", wheel18.conninfo(), "--queries", *wanted)
    assert done.returncode == 0, done.stderr
    for file in files:
        assert "TopSecret" in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "TopSecret" in done.stdout
    # What is made of such a file holds them too.
    again = run("report", str(files[0]), "-o", str(tmp_path / "again.html"))
    assert again.returncode == 0, again.stderr
    assert stat.S_IMODE((tmp_path / "again.html").stat().st_mode) == 0o600
