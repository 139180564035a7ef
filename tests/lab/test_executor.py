"""Cells of a grid on worker processes and on a cluster; a worker that is killed, and a run that is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from pgsweep.errors import MissingAbility, UsageError
from pgsweep.lab.chosen import prepare, run_lab
from pgsweep.lab.store import read_samples
from pgsweep.workers import check_executor
from tests.fix_cli import PGSWEEP, run
from tests.fix_process import wait_until

GRID = """
repetitions = 2
scale = 0
warm_up_seconds = 0.1
seed = 7
[settings]
work_mem = ["1MB", "2MB", "3MB"]
[[workload]]
sql = "work.sql"
"""
CELLS, REPETITIONS = 3, 2


def grid_in(folder: Path, seconds: float = 0.0) -> Path:
    (folder / "work.sql").write_text(f"SELECT count(*), pg_sleep({seconds}) FROM generate_series(1, 1000);\n")
    path = folder / "grid.toml"
    path.write_text(GRID)
    return path


def assert_whole(samples: Path) -> None:
    """Every run is there, once."""
    lines = samples.read_text().count('"kind":"run"')
    runs = read_samples(samples)[1]
    assert lines == len(runs) == CELLS * REPETITIONS
    assert set(Counter(run.job for run in runs).values()) == {REPETITIONS}
    assert all(run.failure is None for run in runs)


def workers_of(pid: int) -> list[int]:
    """Return the worker processes of a run: its children that multiprocessing has spawned."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes()
            parent = re.search(r"PPid:\s+(\d+)", (path / "status").read_text())
            if b"spawn_main" in words and parent is not None and int(parent[1]) == pid:
                found.append(int(path.name))
    return found


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    grid_in(tmp_path, 0.2)
    command = [PGSWEEP, "lab", "run", "grid.toml", "--executor", "processes:2", "-o", "grid.json"]
    started = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    samples = tmp_path / "grid.samples.jsonl"
    # One cell is done, so others are at work.
    wait_until(lambda: samples.exists() and b'"kind":"run"' in samples.read_bytes(), 100)
    os.kill(workers_of(started.pid)[0], signal.SIGKILL)
    _, said = started.communicate(timeout=200)
    assert started.returncode == 0, said
    assert "a worker died; run again: " in said
    assert_whole(samples)
    assert "disturb each other" in (tmp_path / "grid.json").read_text()


@pytest.mark.slow
def test_a_killed_run_ends_its_workers_and_goes_on(tmp_path: Path) -> None:
    grid_in(tmp_path, 0.2)
    command = [PGSWEEP, "lab", "run", "grid.toml", "--executor", "processes:2"]
    started = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples = tmp_path / "grid.samples.jsonl"
    wait_until(lambda: samples.exists() and b'"kind":"run"' in samples.read_bytes(), 100)
    workers = workers_of(started.pid)
    assert len(workers) == 2
    started.send_signal(signal.SIGKILL)
    started.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 30)
    kept = len(read_samples(samples)[1])
    # Without the executor too: the file of samples is the same.
    done = run("lab", "run", "grid.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"resumed: {kept} of {CELLS * REPETITIONS} runs" in done.stderr
    assert_whole(samples)


@pytest.mark.slow
def test_any_executor_will_do(tmp_path: Path) -> None:
    samples = tmp_path / "s.jsonl"
    with ThreadPoolExecutor(2) as executor:
        result = run_lab(str(grid_in(tmp_path)), samples, executor=executor)
        assert executor.submit(int, "1").result() == 1, "it is the caller's, and is not shut down"
    assert_whole(samples)
    assert result.runs_done == CELLS * REPETITIONS


@pytest.mark.slow
def test_a_cluster_runs_cells_too(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    code = """
import sys
from distributed import LocalCluster
with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""
    cluster = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", f"if __name__ == '__main__':\n    exec({code!r})"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        grid_in(tmp_path)
        done = run("lab", "run", "grid.toml", "--executor", address, cwd=tmp_path, timeout_seconds=120)
    finally:
        cluster.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    assert_whole(tmp_path / "grid.samples.jsonl")


@pytest.mark.parametrize("text", ["", "processes", "processes:0", "processes:-1", "threads:2", "http://x"])
def test_what_is_no_executor_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an executor"):
        check_executor(text)


def test_without_dask_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_executor("processes:2")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingAbility) as refused:
        check_executor("tcp://127.0.0.1:8786")
    assert refused.value.hint == "pip install 'pgsweep[cluster]'"


def test_an_experiment_has_the_machine_to_itself(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="goes with a grid"):
        prepare("residency").run(samples=tmp_path / "s", executor="processes:2")
    done = run("lab", "run", "--all", "--executor", "processes:2", cwd=tmp_path)
    assert done.returncode == 2
    assert "--executor goes with a grid, not with --all" in done.stderr
