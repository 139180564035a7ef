"""Long traces are replayed by samples of their pages; threads, processes or a cluster: the same numbers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.errors import MissingAbility
from pgsweep.sizing.predict import predict
from pgsweep.sizing.traces.foreign import replay_cold
from pgsweep.sizing.traces.sampled import replay_sizes
from pgsweep.sizing.traces.shared_replays import ReplayPlan
from pgsweep.workers import run_tasks
from tests.fix_process import wait_until
from tests.fix_written import MIB, write_trace

OBJECTS, ACCESSES = 200_000, 4_000_000
SIZES = [4_000, 16_000, 50_000, 120_000]


def zipf(random: np.random.Generator) -> NDArray[np.uint32]:
    weight = 1 / np.arange(1, OBJECTS + 1) ** 0.8
    edges = np.cumsum(weight) / weight.sum()
    rank = np.minimum(np.searchsorted(edges, random.random(ACCESSES)), OBJECTS - 1)
    return random.permutation(OBJECTS)[rank].astype(np.uint32)


@pytest.fixture(scope="module")
def traces() -> dict[str, NDArray[np.uint32]]:
    """Return traces of random reads, of those with a loop among them, and of a window that moves."""
    random = np.random.default_rng(1)
    reads = zipf(random)
    loop = zipf(random)
    inside = random.random(ACCESSES) < 0.3
    loop[inside] = 100_000 + np.arange(int(inside.sum())) % 60_000
    ahead = random.exponential(0.02 * OBJECTS, ACCESSES)
    moving = ((np.arange(ACCESSES) / ACCESSES * OBJECTS + ahead) % OBJECTS).astype(np.uint32)
    return {"reads": reads, "loop": loop, "moving": moving}


@pytest.mark.parametrize("name", ["reads", "loop", "moving"])
def test_samples_miss_as_the_whole_trace_does(name: str, traces: dict[str, NDArray[np.uint32]]) -> None:
    pages = traces[name]
    whole = _native.replay(pages, SIZES, _native.Rules(18))["misses"][:, 0] / ACCESSES
    edges = np.array([0, ACCESSES])
    found = replay_sizes(pages, OBJECTS, SIZES, 18, edges, sampled=True)
    ratio = np.array([one.misses.sum() for one in found]) / ACCESSES
    error = np.array([one.error for one in found]) / ACCESSES
    assert np.abs(ratio - whole).max() < 0.003
    # What the samples say of their own error holds, and is small.
    assert np.all(np.abs(ratio - whole) < 4 * error + 0.0005)
    assert error.max() < 0.002
    everything = replay_sizes(pages, OBJECTS, SIZES, 18, edges, sampled=False)
    assert [one.misses.sum() / ACCESSES for one in everything] == pytest.approx(whole.tolist())


def test_a_long_trace_is_sampled_and_says_so(traces: dict[str, NDArray[np.uint32]]) -> None:
    pages = traces["reads"]
    whole, sampled = (
        replay_cold(pages, OBJECTS, SIZES, version=18, plan=plan)
        for plan in (ReplayPlan(), ReplayPlan(long_trace_accesses=ACCESSES))
    )
    assert sampled.reasons[-1].code == "foreign-pages-sampled"
    assert "foreign-pages-sampled" not in [reason.code for reason in whole.reasons]
    assert sampled.miss_ratio == pytest.approx(whole.miss_ratio, abs=0.003)
    assert np.all((sampled.low <= whole.miss_ratio) & (whole.miss_ratio <= sampled.high))


def skewed(random: np.random.Generator) -> NDArray[np.uint32]:
    """Return reads by a Zipf law of 1.2: a fifth of them are of one page."""
    weight = np.arange(1, OBJECTS + 1) ** -1.2
    rank = np.searchsorted(np.cumsum(weight) / weight.sum(), random.random(ACCESSES))
    return random.permutation(OBJECTS)[np.minimum(rank, OBJECTS - 1)].astype(np.uint32)


def few_hot(random: np.random.Generator) -> NDArray[np.uint32]:
    """Return reads of which nine tenths are of three pages, the others of all pages alike."""
    hot = random.random(ACCESSES) < 0.9
    return np.where(hot, random.integers(0, 3, ACCESSES), random.integers(0, OBJECTS, ACCESSES)).astype(
        np.uint32
    )


@pytest.mark.parametrize("law", [skewed, few_hot])
def test_the_hottest_pages_need_not_be_kept(law: Callable[[np.random.Generator], NDArray[np.uint32]]) -> None:
    """Misses are multiplied, not their ratio: a page that hardly misses may be in the sample or not."""
    pages, edges = law(np.random.default_rng(4)), np.array([0, ACCESSES])
    whole = _native.replay(pages, SIZES, _native.Rules(18))["misses"][:, 0] / ACCESSES
    for seed in range(3):
        found = replay_sizes(pages, OBJECTS, SIZES, 18, edges, sampled=True, seed=seed)
        ratio = np.array([one.misses.sum() for one in found]) / ACCESSES
        assert np.abs(ratio - whole).max() < 0.001


@pytest.mark.parametrize("kind", ["processes", "executor"])
def test_other_workers_give_the_same_numbers(kind: str, traces: dict[str, NDArray[np.uint32]]) -> None:
    pages, edges = traces["reads"], np.array([0, ACCESSES])
    here = replay_sizes(pages, OBJECTS, SIZES[1:], 18, edges, sampled=True)
    if kind == "processes":
        there = replay_sizes(pages, OBJECTS, SIZES[1:], 18, edges, sampled=True, executor="processes:2")
    else:
        with ThreadPoolExecutor(1) as executor:
            there = replay_sizes(pages, OBJECTS, SIZES[1:], 18, edges, sampled=True, executor=executor)
            assert executor.submit(int, "1").result() == 1, "it is the caller's, and is not shut down"
    for one, other in zip(here, there, strict=True):
        assert one.misses.tolist() == other.misses.tolist()
        assert one.error == other.error


def killed_once(folder: str, number: int) -> int:
    """Return a number; the first worker that is asked for 3 dies."""
    if number == 3:
        try:
            (Path(folder) / "died").touch(exist_ok=False)
        except FileExistsError:
            return number
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def killed(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_what_a_killed_worker_had_is_done_again(tmp_path: Path) -> None:
    tasks = [(str(tmp_path), number) for number in range(6)]
    assert run_tasks("processes:2", killed_once, tasks) == list(range(6))
    assert (tmp_path / "died").exists()


def test_workers_that_always_die_are_an_error() -> None:
    with pytest.raises(MissingAbility, match="2 of 2 tasks were lost"):
        run_tasks("processes:1", killed, [(1,), (2,)])


def test_an_error_of_a_task_is_the_caller_s() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        run_tasks("processes:1", int, [("1",), ("x",)])


CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


def noted(folder: str, number: int) -> int:
    """Return a number after half a second, and leave a note that it was done."""
    time.sleep(0.5)
    (Path(folder) / f"done-{number}").touch()
    return number


@pytest.mark.slow
def test_a_cluster_that_is_lost_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduler and workers are killed half way."""
    pytest.importorskip("distributed")
    monkeypatch.setattr("pgsweep.workers._CONNECT_SECONDS", 5)
    (tmp_path / "cluster.py").write_text(CLUSTER)
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    cluster = subprocess.Popen(
        [sys.executable, "-W", "ignore", "cluster.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()

        def kill_it() -> None:
            wait_until(lambda: any(tmp_path.glob("done-*")))
            os.killpg(cluster.pid, signal.SIGKILL)

        killing = threading.Thread(target=kill_it)
        killing.start()
        with pytest.raises(MissingAbility, match=f"the scheduler at {address} is not reached") as lost:
            run_tasks(address, noted, [(str(tmp_path), number) for number in range(30)])
        killing.join()
    assert "--executor processes:2" in (lost.value.hint or "")
    assert 1 <= len(list(tmp_path.glob("done-*"))) < 30


def test_where_no_scheduler_listens_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("pgsweep.workers._CONNECT_SECONDS", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # it does not listen
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(MissingAbility, match="is not reached") as refused:
            run_tasks(address, int, [("1",)])
    assert "start it: dask scheduler" in (refused.value.hint or "")


def test_a_caller_s_executor_that_is_broken_is_an_error() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        assert isinstance(executor.submit(killed, 1).exception(), BrokenExecutor)
        with pytest.raises(MissingAbility, match="2 of 2 tasks were lost"):
            run_tasks(executor, int, [("1",), ("2",)])
    with pytest.raises(MissingAbility, match="1 of 1 tasks were lost"):
        run_tasks(executor, int, [("1",)])


@pytest.mark.slow
def test_a_cluster_gives_the_same_numbers_though_a_worker_dies(
    tmp_path: Path, traces: dict[str, NDArray[np.uint32]]
) -> None:
    pytest.importorskip("distributed")
    (tmp_path / "cluster.py").write_text(CLUSTER)
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    cluster = subprocess.Popen(
        [sys.executable, "-W", "ignore", "cluster.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        tasks = [(str(tmp_path), number) for number in range(6)]
        assert run_tasks(address, killed_once, tasks) == list(range(6))
        pages, edges = traces["reads"][:1_000_000], np.array([0, 1_000_000])
        here = replay_sizes(pages, OBJECTS, SIZES[2:], 18, edges, sampled=True)
        there = replay_sizes(pages, OBJECTS, SIZES[2:], 18, edges, sampled=True, executor=address)
        recorded = write_trace(tmp_path / "a.evidence", accesses=40_000)
        sizes = [2 * MIB, 8 * MIB, 32 * MIB]
        shared = predict(recorded, sizes_bytes=sizes, executor=address)
    finally:
        cluster.communicate(timeout=60)
    assert [one.misses.tolist() for one in here] == [one.misses.tolist() for one in there]
    assert len(shared.points) == 3
    assert shared == predict(recorded, sizes_bytes=sizes)
