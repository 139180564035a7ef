"""kill -9 at a few random moments; `make bench NAME=kill` does it at a hundred."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.kill import scenarios
from benchmarks.kill.kills import Kill, Scenario, kill_at, span_of
from pgsweep.pg.cluster import Cluster
from tests.fix_hugepages import locked_pages, needs_2mb
from tests.fix_process import needs_root

MOMENTS, MOST_MOMENTS = 2, 16

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with scenarios.killed_server() as cluster:
        yield cluster


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
