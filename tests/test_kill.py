"""kill -9 at a few random moments; `make bench NAME=kill` does it at a hundred."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.kill import scenarios
from benchmarks.kill.kills import Kill, Scenario, changed_code, kill_at, span_of
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run
from tests.fix_hugepages import locked_pages, needs_2mb
from tests.fix_process import needs_root, wait_until
from tests.fix_trace import can_trace

MOMENTS, MOST_MOMENTS = 2, 16
KILLS = 6
TRACES_AGAIN_AND_AGAIN = """
import sys
from pgsweep._native import Tracer
while True:
    tracer = Tracer(*map(int, sys.argv[1:3]), databases=(), ring_bytes=1 << 20, attachment=sys.argv[3])
    print("attached", flush=True)
    tracer.stop()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with scenarios.killed_server() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def forked_next_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the commands that nobody kills, instead of starting them."""

    def pgsweep(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        env = {"XDG_STATE_HOME": str(folder / "state")}
        return run(*arguments, cwd=folder, env=env, timeout_seconds=300)

    monkeypatch.setattr(scenarios, "pgsweep", pgsweep)


def kill_often(scenario: Scenario, cluster: Cluster, folder: Path) -> None:
    span = span_of(scenario, folder / "whole")
    kills: list[Kill] = []
    # A command that had ended by itself was not killed.
    while sum(not kill.ended for kill in kills) < MOMENTS:
        assert len(kills) < MOST_MOMENTS, kills
        kills.append(kill_at(scenario, cluster, folder / str(len(kills)), random.Random(), span))


@needs_root
@needs_2mb
def test_hugepages(cluster: Cluster, tmp_path: Path) -> None:
    with locked_pages():
        kill_often(scenarios.hugepages(cluster, buffers="1GB"), cluster, tmp_path)


@pytest.mark.parametrize(
    "scenario",
    [
        lambda cluster: scenarios.record(cluster, "sql", seconds=3),
        pytest.param(lambda cluster: scenarios.record(cluster, "trace", seconds=2), marks=needs_root),
        scenarios.warm_run,
        lambda cluster: scenarios.warm_keep(cluster, seconds=2),
    ],
    ids=["record sql", "record trace", "warm run", "warm keep"],
)
def test_nothing_stays(scenario: Callable[[Cluster], Scenario], cluster: Cluster, tmp_path: Path) -> None:
    kill_often(scenario(cluster), cluster, tmp_path)


@pytest.mark.parametrize(
    "attachment", [pytest.param(name, marks=can_trace) for name in ("auto", "perf_event")]
)
def test_no_breakpoint_stays_where_probes_come_and_go(cluster: Cluster, attachment: str) -> None:
    """At a kill the kernel gives up to place or remove a breakpoint: a process apart does it (sibling.rs)."""
    server = str(cluster.postmaster_pid), str(cluster.version_num)
    for _ in range(KILLS):
        command = [sys.executable, "-c", TRACES_AGAIN_AND_AGAIN, *server, attachment]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"attached\n"
            time.sleep(random.uniform(0, 0.5))
            process.kill()
        wait_until(lambda: not changed_code(cluster), why=lambda: changed_code(cluster))
