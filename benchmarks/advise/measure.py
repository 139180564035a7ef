"""The truth at one size: a server restarted with it, settled, and counted.

Settled means: the pool was read anew, the page cache too, and both the miss ratio and the bytes that come
from disk for each miss are steady over the last seconds. What was counted before that limit of time ran out
says `settled: false`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.advise.workloads import Load
from pgsweep._native import drop_page_cache
from pgsweep.host.processor_time import host_seconds, server_seconds
from pgsweep.host.server_memory import disk_read_bytes
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.filling import PoolContent, fill_pool, pool_content
from pgsweep.testbed.truth import Monitor, Patience, is_steady
from pgsweep.testbed.workloads import Workload
from pgsweep.units import BLOCK_BYTES

_HALF_WINDOWS = 4
_STEADY_SHARE = 0.06
_NO_DISK_BYTES = 16.0
"""Read from disk for each access: less is none."""


@dataclass(frozen=True)
class Window:
    """What was counted in about a second; or the sum of several."""

    seconds: float
    accesses: int
    misses: int
    transactions: int
    disk_bytes: int

    @property
    def miss_ratio(self) -> float:
        return self.misses / max(self.accesses, 1)


class Watch:
    """Counts what a server and its load do, second by second."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._monitor = Monitor(cluster)
        self._last = self._now()

    def _now(self) -> Window:
        counts = self._monitor.counts()
        assert self._cluster.postmaster_pid is not None
        read = disk_read_bytes(self._cluster.postmaster_pid)
        assert read is not None
        return Window(time.monotonic(), counts.accesses, counts.misses, counts.transactions, read)

    def window(self, seconds: float = 1.0) -> Window:
        """Let time pass and return what was counted in it."""
        time.sleep(seconds)
        now, last = self._now(), self._last
        self._last = now
        return Window(
            now.seconds - last.seconds,
            now.accesses - last.accesses,
            now.misses - last.misses,
            now.transactions - last.transactions,
            now.disk_bytes - last.disk_bytes,
        )

    def unused_buffers(self) -> int:
        return self._monitor.unused_buffers()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._monitor.close()


def settle(watch: Watch, size_bytes: int, memory_bytes: int, limit_seconds: float) -> tuple[bool, float]:
    """Wait until both caches have settled, or for so long; return whether, and the seconds."""
    begun, windows, unused = time.monotonic(), list[Window](), list[int]()
    while (seconds := time.monotonic() - begun) < limit_seconds:
        windows.append(watch.window())
        unused.append(watch.unused_buffers() if not unused or unused[-1] else 0)
        later = windows[1:]  # the first has the connecting of the sessions
        misses, read = sum(one.misses for one in windows), sum(one.disk_bytes for one in windows)
        fits = unused[-1] > 0 and len(unused) >= 4 and len(set(unused[-4:])) == 1
        pool = fits or (unused[-1] == 0 and misses * BLOCK_BYTES >= size_bytes)
        dry = len(later) >= 4 and all(one.disk_bytes < _NO_DISK_BYTES * one.accesses for one in later[-4:])
        cache = dry or read >= memory_bytes - size_bytes
        steady = is_steady([one.miss_ratio for one in later], Patience()) and (dry or _steady(later))
        if pool and cache and steady:
            return True, seconds
    return False, time.monotonic() - begun


def _steady(windows: Sequence[Window]) -> bool:
    """Return whether as much is read from disk for each access as in the seconds before.

    The server's counters lag behind by up to a second, so that single seconds say little.
    """
    if len(windows) < 2 * _HALF_WINDOWS:
        return False
    last = windows[-2 * _HALF_WINDOWS :]
    early, late = (
        sum(one.disk_bytes for one in half) / max(sum(one.accesses for one in half), 1)
        for half in (last[:_HALF_WINDOWS], last[_HALF_WINDOWS:])
    )
    return abs(late - early) <= max(_STEADY_SHARE * early, _NO_DISK_BYTES)


def measure(
    cluster: Cluster,
    workload: Workload,
    scale: int,
    size_bytes: int,
    memory_bytes: int,
    *,
    carried: PoolContent,
    seed: int,
    settle_seconds: float,
    count_seconds: int,
    turns: Callable[[Load], list[tuple[float, float]]],
) -> tuple[dict[str, Any], PoolContent]:
    """Restart at a size, settle, count; return what was counted, and what the pool held at the end.

    Args:
        turns: called when it is counted: measures the throughput of the load, and of another in turns.
    """
    begun = time.monotonic()
    start(cluster, size_bytes, carried, seed)
    started = time.monotonic() - begun
    with Watch(cluster) as watch, Load(cluster, workload, scale, seed) as load:
        settled, waited = settle(watch, size_bytes, memory_bytes, settle_seconds)
        watch.window(0.0)
        first, used = len(load.transactions_by_second()), _processors(cluster, load)
        windows = [watch.window() for _ in range(count_seconds)]
        rates = load.transactions_by_second()[first + 1 :]
        after = _processors(cluster, load)
        content = pool_content(cluster)
        pairs = turns(load)
    seconds = sum(one.seconds for one in windows)
    others = max(0.0, (after[0] - used[0]) - (after[1] - used[1])) / seconds / (os.cpu_count() or 1)
    return {
        "start_seconds": round(started, 1),
        "settled": settled,
        "settle_seconds": round(waited, 1),
        "seconds": round(seconds, 3),
        "accesses": sum(one.accesses for one in windows),
        "misses": sum(one.misses for one in windows),
        "transactions": sum(one.transactions for one in windows),
        "disk_bytes": sum(one.disk_bytes for one in windows),
        "transactions_by_second": rates,
        "turns": [[round(rate, 1) for rate in pair] for pair in pairs],
        "others": round(others, 3),
        "server_processor_seconds": round(after[2] - used[2], 2),
    }, content


def start(cluster: Cluster, size_bytes: int, carried: PoolContent, seed: int) -> None:
    """Restart at a size, fill the pool, and empty the page cache of the data.

    What is in the pool at first shortens the way to the settled state. The page cache would keep for minutes
    what only filling the pool has read twice.
    """
    cluster.restart({"shared_buffers": f"{size_bytes // 1024}kB"})
    fill_pool(
        cluster, size_bytes // BLOCK_BYTES, carried, seed, not_drawn=lambda name: name.endswith("scanned")
    )
    files = [path for path in (cluster.data_directory / "base").rglob("*") if path.is_file()]
    drop_page_cache(files)


def _processors(cluster: Cluster, load: Load) -> tuple[float, float, float]:
    """Return the processor time so far of the host; of server, pgbench and this program; of the server."""
    assert cluster.postmaster_pid is not None
    host, server = host_seconds(), server_seconds(cluster.postmaster_pid)
    assert host is not None
    assert server is not None
    return host, server + load.processor_seconds() + time.process_time(), server
