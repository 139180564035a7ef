"""A grid on a server that its owner names disposable: refusals, settings put back, a kill, a server down."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from pgsweep.errors import ClusterError, MissingAbility, UsageError
from pgsweep.lab.chosen import prepare
from pgsweep.lab.disposable import check_names, check_server, written_back
from pgsweep.lab.protocol import Disposable, NothingRuns, Place
from pgsweep.lab.shell import run_command
from pgsweep.lab.store import read_samples
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.lab import LabRun
from tests.fix_cli import launch, run
from tests.fix_process import busyness, wait_until
from tests.fix_standby import PRIMARY, standby_of

GRID = """
repetitions = 1
scale = 1
warm_up_seconds = 0.2
caches = ["{caches}"]
[settings]
work_mem = ["1MB", "2MB"]
{settings}
[[workload]]
sql = "count.sql"
"""
_ANSWER_SECONDS = 60


class Owned:
    """A server with a restart command: a script that asks the thread of this object, and waits."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.restarts = 0
        self.works = True
        self._request, self._answer = folder / "request", folder / "answer"
        os.mkfifo(self._request)
        os.mkfifo(self._answer)
        self.command = f"echo restart > {self._request}; read code < {self._answer}; exit $code"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._request.read_text() == "restart\n":
            self.restarts += 1
            code = 0
            try:
                if self.works:
                    self.cluster.restart()
            except ClusterError:
                code = 1
            self._answer.write_text(f"{code}\n")

    def end(self) -> None:
        self._request.write_text("end\n")
        self._thread.join(_ANSWER_SECONDS)

    @property
    def disposable(self) -> Disposable:
        return Disposable(self.cluster.conninfo(), self.command)


@contextmanager
def opened_owned(folder: Path) -> Iterator[Owned]:
    with Cluster.create(settings={"shared_buffers": "8MB", "max_connections": "30"}) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET work_mem = '3MB'")
        cluster.restart()
        made = Owned(cluster, folder)
        yield made
        made.end()


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owned]:
    with opened_owned(tmp_path_factory.mktemp("owned")) as made:
        yield made


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def grid_in(folder: Path, settings: str = "", caches: str = "warm", sql: str = "") -> Path:
    (folder / "count.sql").write_text(sql or "SELECT count(*) FROM pgbench_accounts;\n")
    path = folder / "grid.toml"
    path.write_text(GRID.format(settings=settings, caches=caches))
    return path


def runs_of(grid: Path, owned: Owned, samples: str = "s.jsonl") -> list[LabRun]:
    chosen = prepare(str(grid))
    chosen.run(samples=grid.parent / samples, seed=1, place=Place(server=owned.disposable))
    return read_samples(grid.parent / samples)[1]


def assert_as_before(owned: Owned, state: Path) -> None:
    """The settings of postgresql.auto.conf and those in force, databases, and the file of what was before."""
    lines = (owned.cluster.data_directory / "postgresql.auto.conf").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["work_mem = '3MB'"]
    with psycopg.connect(owned.cluster.conninfo()) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("3MB",)
        names = connection.execute("SELECT datname FROM pg_database ORDER BY 1").fetchall()
    assert names == [("postgres",), ("template0",), ("template1",)]
    assert list((state / "pgsweep").iterdir()) == []


@pytest.mark.slow
def test_a_grid_changes_restarts_and_puts_back(owned: Owned, tmp_path: Path) -> None:
    before = owned.restarts
    sql = "DO $$ BEGIN ASSERT current_setting('work_mem') IN ('1MB', '2MB'); END $$;\n"
    sql += "SELECT count(*) FROM pgbench_accounts;\n"
    runs = runs_of(grid_in(tmp_path, sql=sql), owned)
    assert [run.failure for run in runs] == [None, None]
    assert owned.restarts == before + 3
    assert_as_before(owned, tmp_path / "state")
    header = read_samples(tmp_path / "s.jsonl")[0]
    assert header.conditions["server"].startswith("database postgres at ")
    assert header.server_version == owned.cluster.binaries.version


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the files of another user's server are dropped as root")
def test_cold_runs_drop_the_page_cache(owned: Owned, tmp_path: Path) -> None:
    grid = grid_in(tmp_path, caches="cold")
    grid.write_text(grid.read_text().replace("2MB", "nonsense"))
    runs = sorted(runs_of(grid, owned), key=lambda run: run.job)
    assert runs[0].failure is None
    assert "the server refuses work_mem = nonsense" in str(runs[1].failure)
    assert_as_before(owned, tmp_path / "state")


@pytest.mark.slow
def test_a_server_that_does_not_start_is_brought_back(owned: Owned, tmp_path: Path) -> None:
    # The server takes the value, and cannot have so much memory.
    runs = runs_of(grid_in(tmp_path, settings='shared_buffers = "4TB"\nhuge_pages = "off"'), owned)
    assert len(runs) == 2
    assert all("the server does not start with these settings" in str(run.failure) for run in runs)
    assert_as_before(owned, tmp_path / "state")


@pytest.mark.slow
def test_what_a_killed_run_leaves_is_put_back_by_the_next(owned: Owned, tmp_path: Path) -> None:
    grid = grid_in(tmp_path, sql="SELECT count(*) FROM pgbench_accounts, pg_sleep(0.6);\n")
    words = ["lab", "run", str(grid), "--samples", str(tmp_path / "s.jsonl"), "--yes"]
    words += ["--dsn", owned.cluster.conninfo(), "--restart-command", owned.command]
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    killed = launch(*words, cwd=tmp_path, env=state, stdout=subprocess.DEVNULL)
    sleeping = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgsweep lab' AND query ~ 'sleep'"
    )

    def loaded() -> bool:
        try:
            with psycopg.connect(owned.cluster.conninfo()) as connection:
                row = connection.execute(sleeping).fetchone()
        except psycopg.OperationalError:
            return False  # it restarts
        return row is not None and row[0] > 0

    def said() -> str:
        killed.kill()
        return killed.communicate()[1]

    wait_until(loaded, 120, said)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert len(list((tmp_path / "state" / "pgsweep").iterdir())) == 1
    with psycopg.connect(owned.cluster.conninfo()) as connection:
        assert connection.execute("SHOW work_mem").fetchone() != ("3MB",)
    done = run(*words, cwd=tmp_path, env=state)
    assert done.returncode == 0, done.stderr
    assert "first what a killed run has left is put back or removed" in done.stderr
    runs = read_samples(tmp_path / "s.jsonl")[1]
    assert len({run.job for run in runs}) == len(runs) == 2
    assert_as_before(owned, tmp_path / "state")


@pytest.mark.slow
def test_what_is_refused(owned: Owned, tmp_path: Path) -> None:
    grid = grid_in(tmp_path)
    name = str(grid)
    place = ("--dsn", owned.cluster.conninfo(), "--restart-command", owned.command)
    before = owned.restarts
    told = run("lab", "run", name, *place, "--dry-run", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    for words in (
        "ALTER SYSTEM sets work_mem (now 3MB)",
        "restarted 3 times",
        "database pgsweep_lab, made with",
    ):
        assert words in told.stderr
    asked = run("lab", "run", name, *place, cwd=tmp_path)
    assert asked.returncode == 2
    assert "there is no terminal to ask on" in asked.stderr
    for wrong, said in (
        (("residency", *place), "experiments make their own servers"),
        ((name, *place[:2]), "--dsn needs --restart-command"),
        ((name, "--yes"), "go with --dsn"),
        (("--all", *place), "not with --all"),
    ):
        done = run("lab", "run", *wrong, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
    with psycopg.connect(owned.cluster.conninfo(), application_name="shop"):
        other = run("lab", "run", name, *place, "--yes", cwd=tmp_path)
    assert other.returncode == 2
    assert "other clients are connected to the server: shop of " in other.stderr
    with pytest.raises(UsageError, match="shared_preload_libraries is not changed"):
        check_names(["work_mem", "shared_preload_libraries"])
    with psycopg.connect(owned.cluster.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE pgsweep_lab")
    theirs = run("lab", "run", name, *place, "--yes", cwd=tmp_path)
    with psycopg.connect(owned.cluster.conninfo(), autocommit=True) as connection:
        connection.execute("DROP DATABASE pgsweep_lab")
    assert "there is a database `pgsweep_lab` that pgsweep did not make" in theirs.stderr
    assert f"psql -h {owned.cluster.socket_directory} -p 5432 -U postgres -d " in theirs.stderr
    assert "-c 'ALTER DATABASE pgsweep_lab RENAME TO another'" in theirs.stderr
    assert owned.restarts == before
    assert not (tmp_path / "grid.samples.jsonl").exists()


@pytest.mark.slow
def test_a_restart_command_that_does_nothing_ends_the_run(owned: Owned, tmp_path: Path) -> None:
    grid = grid_in(tmp_path)
    owned.works = False
    monkey = pytest.MonkeyPatch()
    monkey.setattr("pgsweep.lab.disposable._BACK_PATIENCE_SECONDS", 0.3)
    try:
        with pytest.raises(NothingRuns):
            runs_of(grid, owned)
        assert read_samples(tmp_path / "s.jsonl")[1] == []
    finally:
        owned.works = True
        monkey.undo()
    # The server runs as it did; only its restart with the old settings waits for the next run.
    assert len(list((tmp_path / "state" / "pgsweep").iterdir())) == 1
    runs = runs_of(grid, owned)
    assert [run.failure for run in runs] == [None, None]
    assert_as_before(owned, tmp_path / "state")


@pytest.mark.slow
def test_a_standby_is_refused(tmp_path: Path) -> None:
    with Cluster.create(settings=PRIMARY) as primary, standby_of(primary) as standby:
        with pytest.raises(MissingAbility, match="standby"):
            check_server(Disposable(standby.conninfo(), "true"))
        wait_until(lambda: _replicates(primary), 30)
        with pytest.raises(UsageError, match=r"other clients are connected .* walreceiver"):
            check_server(Disposable(primary.conninfo(), "true"))


def _replicates(primary: Cluster) -> bool:
    with psycopg.connect(primary.conninfo()) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_replication").fetchone()
    return row is not None and row[0] > 0


def test_lines_of_the_configuration_are_put_back() -> None:
    text = "# Do not edit this file!\nwork_mem = '1MB'\nWORK_MEM = '2MB'\njit = 'off'\nwork_mem_x = 'a'\n"
    found = written_back(text, {"work_mem": None, "jit": "it's"})
    assert found == "# Do not edit this file!\nwork_mem_x = 'a'\njit = 'it''s'\n"
    assert written_back(text, {}) == text


def test_a_command_ends_in_any_case() -> None:
    assert run_command("echo a; echo b >&2; exit 3") == (3, "a\nb")
    begin = time.monotonic()
    code, said = run_command("echo begun; sleep 60 & sleep 60", 0.3)
    assert (code, said) == (None, "begun")
    # What goes on behind it keeps its output open.
    assert run_command("sleep 5 & echo started") == (0, "started")
    assert time.monotonic() - begin < 4 * busyness()
