"""Measures the truth: the miss ratio of a workload on a real server at a given shared_buffers.

The server is restarted with the size, the workload runs until its miss ratio is steady, then it is counted.

A miss ratio is misses / accesses of the workload's database, both from pg_stat_database (blks_read, and
blks_read + blks_hit). Backends report their counts at the end of a transaction, once a second at most; hits
and misses are reported together, so the lag shifts a window but does not skew its ratio. On PostgreSQL 15 and
older a block by which a table is extended counts as read; from 16 on it counts as neither.

A large pool takes long to fill by misses alone. So it is filled first: with what the last, smaller pool held
when it was steady, then with blocks drawn at random from the whole database. That only shortens the way: the
pool is taken for settled no sooner than by the rule in `Patience`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import psycopg

from pgsweep.errors import ClusterError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener, Progress
from pgsweep.testbed.filling import PoolContent, fill_pool, pool_content, unused_buffers
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload
from pgsweep.testbed.workloads import Workload
from pgsweep.units import BLOCK_BYTES

_WINDOW_SECONDS = 1.0
_SMALLEST_POOL_BLOCKS = 16  # shared_buffers cannot be below 128 kB


@dataclass(frozen=True, slots=True)
class Patience:
    """When a pool counts as settled, and how long to count then.

    Settled: no unused buffer is left and as many pages were read as the pool has buffers, times `turnovers`
    (or the number of unused buffers no longer changes: the database fits); and over the last windows of a
    second, at least `settle_windows` of them, the miss ratio of the later half differs from that of the
    earlier half by no more than twice the standard error of the difference, which itself is no more than
    `settle_error` or a hundredth of the ratio, whichever is larger.

    The second half of the rule alone stops too early in a large pool, whose slow drift hides in the noise of
    a few seconds: with it alone, ratios at 256 and 512 MB came out up to 0.002 too high.

    Attributes:
        turnovers: how often the pool's content must have been read anew, on average.
        settle_windows: the fewest windows looked at.
        settle_error: largest standard error of the difference of the halves (a miss ratio).
        settle_limit_seconds: count anyway after this time, and say that it was not settled.
        count_windows: the fewest windows counted.
        count_error: counting ends when the standard error is no more than this.
        count_limit_seconds: or after this time.
    """

    turnovers: float = 1.5
    settle_windows: int = 6
    settle_error: float = 0.0015
    settle_limit_seconds: float = 90.0
    count_windows: int = 6
    count_error: float = 0.0004
    count_limit_seconds: float = 12.0


@dataclass(frozen=True, slots=True)
class Truth:
    """A measured miss ratio.

    Attributes:
        shared_buffers_bytes: the size.
        miss_ratio: misses / accesses.
        standard_error: of the miss ratio, from the spread of the windows.
        accesses: all counted page accesses.
        misses: those that were not in shared_buffers.
        transactions: committed while counting.
        seconds: how long was counted.
        settle_seconds: how long the workload ran before.
        settled: whether the pool had settled by the rule.
        windows: miss ratio of every second of the run, counted or not.
    """

    shared_buffers_bytes: int
    miss_ratio: float
    standard_error: float
    accesses: int
    misses: int
    transactions: int
    seconds: float
    settle_seconds: float
    settled: bool
    windows: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Counts:
    seconds: float
    accesses: int
    misses: int
    transactions: int

    def since(self, earlier: _Counts) -> _Counts:
        return _Counts(
            self.seconds - earlier.seconds,
            self.accesses - earlier.accesses,
            self.misses - earlier.misses,
            self.transactions - earlier.transactions,
        )


class Monitor:
    """A session in another database of the cluster that reads the workload's counters.

    Args:
        cluster: must run.
    """

    def __init__(self, cluster: Cluster) -> None:
        cluster.create_extensions("postgres", "pg_buffercache")
        self._connection = psycopg.connect(cluster.conninfo(), autocommit=True)

    def counts(self) -> _Counts:
        """Return the workload's cumulative counters."""
        row = self._connection.execute(
            "SELECT extract(epoch FROM clock_timestamp())::float8, blks_hit, blks_read, xact_commit"
            " FROM pg_stat_database WHERE datname = %s",
            (DATABASE,),
        ).fetchone()
        if row is None:
            raise ClusterError(f"database {DATABASE} is gone")
        return _Counts(row[0], row[1] + row[2], row[2], row[3])

    def unused_buffers(self) -> int:
        """Return how many buffers hold nothing yet."""
        return unused_buffers(self._connection)

    def close(self) -> None:
        """End the session."""
        self._connection.close()


def halves_differ(ratios: Sequence[float]) -> tuple[float, float]:
    """Return by how much the later half of a series exceeds the earlier, and the standard error of that."""
    half = len(ratios) // 2
    early, late = np.asarray(ratios[:half]), np.asarray(ratios[-half:])
    error = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / half)
    return float(late.mean() - early.mean()), error


def is_steady(ratios: Sequence[float], patience: Patience) -> bool:
    """Return whether a series of miss ratios, one a window, has come to rest by the rule in `Patience`.

    Longer and longer pasts are looked at, so that noise is averaged away where it is large.
    """
    for count in range(patience.settle_windows, len(ratios) + 1):
        difference, error = halves_differ(ratios[-count:])
        fine = max(patience.settle_error, ratios[-1] / 100)
        if abs(difference) <= 2 * error and error <= fine:
            return True
    return False


class SettledWorkload:
    """A workload on a freshly restarted server; a context that ends the workload.

    Args:
        cluster: with the workload's tables made.
        workload: what runs.
        shared_buffers_bytes: the size to restart with.
        seed: of the workload and of the random filling.
        carried: what a smaller pool held.
        patience: when it counts as settled.
        progress: called with the seconds done.

    Raises:
        ClusterError: the server does not start with that size.
    """

    def __init__(
        self,
        cluster: Cluster,
        workload: Workload,
        shared_buffers_bytes: int,
        *,
        seed: int,
        carried: PoolContent | None = None,
        patience: Patience | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._cluster = cluster
        self._rule = patience or Patience()
        self._progress = progress or NullListener()
        self.blocks = max(_SMALLEST_POOL_BLOCKS, shared_buffers_bytes // BLOCK_BYTES)
        cluster.restart({"shared_buffers": f"{self.blocks * BLOCK_BYTES // 1024}kB"})
        fill_pool(cluster, self.blocks, carried or PoolContent(), seed)
        self._monitor = Monitor(cluster)
        self._windows: list[_Counts] = []
        self._settle_seconds = 0.0
        self._settled = False
        try:
            self._running = RunningWorkload(cluster, workload, seed=seed)
        except BaseException:
            self._monitor.close()
            raise
        self._started = time.monotonic()
        self._last = self._monitor.counts()

    def settle(self) -> bool:
        """Wait until the pool has settled, or the patience ends.

        Returns:
            Whether it has settled.

        Raises:
            ClusterError: the workload failed.
        """
        unused: list[int] = []
        while not self._settled and self._elapsed() < self._rule.settle_limit_seconds:
            self._window()
            # A buffer once used stays used, so zero needs no new check (which costs 50 ms in a large pool).
            unused.append(self._monitor.unused_buffers() if not unused or unused[-1] else 0)
            loaded = sum(window.misses for window in self._windows)
            turned_over = unused[-1] == 0 and loaded >= self._rule.turnovers * self.blocks
            fits = unused[-1] > 0 and len(unused) >= 4 and len(set(unused[-4:])) == 1
            # The first window holds the clients' connecting and the catalog's first reads.
            ratios = [_ratio(window) for window in self._windows[1:]]
            self._settled = (turned_over or fits) and is_steady(ratios, self._rule)
        self._settle_seconds = self._elapsed()
        return self._settled

    def count(self) -> Truth:
        """Count accesses and misses until the ratio is known well enough.

        Raises:
            ClusterError: the workload failed.
        """
        before, begun = len(self._windows), self._elapsed()
        while True:
            self._window()
            counted = self._windows[before:]
            error = _standard_error(counted)
            if len(counted) >= self._rule.count_windows and error <= self._rule.count_error:
                break
            if self._elapsed() - begun >= self._rule.count_limit_seconds:
                break
        accesses = sum(window.accesses for window in counted)
        misses = sum(window.misses for window in counted)
        return Truth(
            shared_buffers_bytes=self.blocks * BLOCK_BYTES,
            miss_ratio=misses / accesses if accesses else 0.0,
            standard_error=error,
            accesses=accesses,
            misses=misses,
            transactions=sum(window.transactions for window in counted),
            seconds=sum(window.seconds for window in counted),
            settle_seconds=self._settle_seconds,
            settled=self._settled,
            windows=tuple(_ratio(window) for window in self._windows),
        )

    def check(self) -> None:
        """Raise when the workload has ended by itself.

        Raises:
            ClusterError: it has.
        """
        self._running.check()

    def close(self) -> None:
        """End the workload; the server stays."""
        self._running.stop()
        self._monitor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _window(self) -> None:
        """Let a second pass and note what was counted in it."""
        time.sleep(_WINDOW_SECONDS)
        self._running.check()
        now = self._monitor.counts()
        self._windows.append(now.since(self._last))
        self._last = now
        self._progress.advance(self._elapsed())


def measure(
    cluster: Cluster,
    workload: Workload,
    shared_buffers_bytes: int,
    *,
    seed: int,
    carried: PoolContent | None = None,
    patience: Patience | None = None,
    progress: Progress | None = None,
) -> tuple[Truth, PoolContent]:
    """Restart with a size, run the workload until it is steady, count; arguments as for `SettledWorkload`.

    Returns:
        The truth, and what the pool held at the end.

    Raises:
        ClusterError: the server does not start with that size, or the workload fails.
    """
    with SettledWorkload(
        cluster,
        workload,
        shared_buffers_bytes,
        seed=seed,
        carried=carried,
        patience=patience,
        progress=progress,
    ) as running:
        running.settle()
        truth = running.count()
        return truth, pool_content(cluster)


def _ratio(window: _Counts) -> float:
    return window.misses / window.accesses if window.accesses else 0.0


def _standard_error(windows: Sequence[_Counts]) -> float:
    """Return the standard error of the pooled ratio, taking the seconds for independent."""
    if len(windows) < 2:
        return 1.0
    accesses = np.array([window.accesses for window in windows], dtype=float)
    misses = np.array([window.misses for window in windows], dtype=float)
    total = accesses.sum()
    if total == 0:
        return 0.0
    residuals = misses - misses.sum() / total * accesses
    return float(math.sqrt((residuals**2).sum() * len(windows) / (len(windows) - 1)) / total)
