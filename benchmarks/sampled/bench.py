"""Compare samples of the pages with the whole trace: 200 million accesses at 64 sizes.

Run by `make bench NAME=sampled`. A Zipf trace with a loop and a moving window in it is replayed as a whole
and by samples, by processor seconds, which other work disturbs least. Then the samples are replayed by two
workers of a dask cluster on this machine, and once more while one of them is killed: the numbers must be the
same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay.traces import zipf_trace
from benchmarks.samples import keep, refuse_debug_build
from pgsweep.sizing.traces.sampled import SampledMisses, replay_sizes

HERE = Path(__file__).resolve().parent
ACCESSES, PAGES = 200_000_000, 10_000_000
SIZES = 64
VERSION = 18
LOOP_SHARE, MOVING_SHARE = 0.1, 0.1
CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, *(worker.pid for worker in cluster.workers.values()), flush=True)
        sys.stdin.read()
"""


def make_trace(accesses: int, pages: int) -> NDArray[np.uint32]:
    """Return random reads of most pages, a loop over a twentieth, and a window that moves over a fifth."""
    random = np.random.default_rng(2)
    trace = zipf_trace(accesses, pages * 3 // 4, exponent=0.9)
    piece = 1 << 22
    for begin in range(0, accesses, piece):
        part = trace[begin : begin + piece]
        kind = random.random(len(part))
        at = begin + np.flatnonzero(kind < LOOP_SHARE)
        part[at - begin] = pages * 3 // 4 + (at * LOOP_SHARE).astype(np.int64) % (pages // 20)
        at = begin + np.flatnonzero(kind > 1 - MOVING_SHARE)
        ahead = at / accesses * pages / 5 + random.exponential(pages / 100, len(at))
        part[at - begin] = pages * 4 // 5 + ahead.astype(np.int64) % (pages // 5)
    return trace


def replayed(
    trace: NDArray[np.uint32], pages: int, sizes: list[int], **how: Any
) -> tuple[NDArray[np.float64], Any]:
    """Return miss ratios, and what it took; the standard errors too where it was sampled."""
    wall, processor = time.perf_counter(), time.process_time()
    edges = np.array([0, len(trace)])
    found: list[SampledMisses] = replay_sizes(trace, pages, sizes, VERSION, edges, **how)
    took = {
        "seconds": round(time.perf_counter() - wall, 2),
        "processor_seconds": round(time.process_time() - processor, 2),
        "standard_error": [round(one.error / len(trace), 6) for one in found],
    }
    return np.array([float(one.misses.sum()) for one in found]) / len(trace), took


def on_cluster(trace: NDArray[np.uint32], pages: int, sizes: list[int], *, kill: bool) -> NDArray[np.float64]:
    """Return miss ratios of samples that two workers replay, one of which is killed half way."""
    here = Path(__file__).resolve().parents[2]
    cluster = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CLUSTER],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert cluster.stdout is not None
        address, *workers = cluster.stdout.readline().split()
        killer = threading.Thread(target=_kill_at_work, args=(int(workers[0]),), daemon=True)
        if kill:
            killer.start()
        ratios, _ = replayed(trace, pages, sizes, sampled=True, executor=address)
        if kill and killer.is_alive():
            raise RuntimeError("no worker was killed: the work was done too soon")
        return ratios
    finally:
        cluster.communicate(timeout=60)


def _kill_at_work(pid: int) -> None:
    """Kill a worker once it has used a fifth of a second of processor time since now."""
    ticks = os.sysconf("SC_CLK_TCK")

    def used() -> float:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / ticks

    before = used()
    while used() < before + 0.2:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Measure, keep the samples, print the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--accesses", type=int, default=ACCESSES)
    parser.add_argument("--pages", type=int, default=PAGES)
    options = parser.parse_args()
    refuse_debug_build()
    trace = make_trace(options.accesses, options.pages)
    sizes = [int(size) for size in np.geomspace(options.pages / 100, options.pages, SIZES)]
    sampled, sampled_took = replayed(trace, options.pages, sizes, sampled=True)
    print(f"by samples: {sampled_took['processor_seconds']} processor seconds", flush=True)
    whole, whole_took = replayed(trace, options.pages, sizes, sampled=False)
    print(f"as a whole: {whole_took['processor_seconds']} processor seconds", flush=True)
    there = on_cluster(trace, options.pages, sizes, kill=False)
    killed = on_cluster(trace, options.pages, sizes, kill=True)
    error = np.abs(sampled - whole)
    summary = {
        "sampled_error_max": round(float(error.max()), 5),
        "sampled_error_mean": round(float(error.mean()), 5),
        "times_faster": round(whole_took["processor_seconds"] / sampled_took["processor_seconds"], 1),
        "times_faster_by_clock": round(whole_took["seconds"] / sampled_took["seconds"], 1),
        "cluster_same": bool((there == sampled).all()),
        "killed_worker_same": bool((killed == sampled).all()),
    }
    raw = {
        "accesses": options.accesses,
        "pages": options.pages,
        "sizes_blocks": sizes,
        "whole": {**whole_took, "miss_ratio": whole.round(6).tolist()},
        "sampled": {**sampled_took, "miss_ratio": sampled.round(6).tolist()},
    }
    keep(HERE, summary, raw, packages=("distributed",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
