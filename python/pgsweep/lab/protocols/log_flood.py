"""How much hot data a log table pushes out of shared_buffers: measured, and simulated.

The hot table is read whole by pg_prewarm and then page by page, each page several times; then the flood
follows in rounds, between which the hot pages may be read. What is left of the hot table in shared_buffers is
measured at the end. The simulation has the same accesses of both tables, and none of catalogs and maps of
free space.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep._native import BULKREAD, BULKWRITE, EXTENSION, PoolContents, Rules, replay_outcomes
from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.held import held
from pgsweep.lab.protocols.keeping import keeping
from pgsweep.lab.protocols.scaled import Protocol, Scaled, Step, kilobytes
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.steps import make_spread_table, open_sessions, read_pages, run_in, run_sql
from pgsweep.warm.keep.keep import KeepOptions

_DATABASE: Final = "postgres"
_USES: Final = 3
"""Accesses of each hot page before the flood."""
_ROUNDS: Final = 16
_LOOKED_EVERY: Final = 2
_LEAST_LOOKED_BLOCKS: Final = 8192
"""The smallest pool that is read between rounds. Each reading brings some 200 pages of catalogs into it. They
would evict what is measured from a smaller one."""
_ROWS_OF_PAGE: Final = 61
"""Rows of the log in one page of 8 kB: 132 bytes each, with their line pointers."""
_MOST_USES: Final = 5
"""usage_count goes no higher (BM_MAX_USAGE_COUNT)."""

_MAKE_LOG: Final = "CREATE TABLE {name} (id int, at timestamptz, line text)"
_FILL_LOG: Final = "INSERT INTO {name} SELECT g, now(), repeat('x', 87) FROM generate_series(1, {rows}) AS g"


@dataclass(frozen=True, slots=True)
class _Flood:
    """What a job does to the hot data.

    Attributes:
        kind: of the flood: insert, copy, scan, index.
        in_use: whether the hot pages are read between the rounds.
        keep: `pgsweep warm keep` holds the hot table.
        paced: after each round it pauses, so that the flood takes as long as at the article's size.
        elsewhere: the log is in a cluster of its own.
        simulated: whether a simulation stands beside.
    """

    kind: str
    in_use: bool = False
    keep: bool = False
    paced: bool = False
    elsewhere: bool = False
    simulated: bool = True


_FLOODS: Final[Mapping[str, _Flood]] = {
    "inserts, hot data idle": _Flood("insert"),
    "inserts, hot data in use": _Flood("insert", in_use=True),
    "COPY, hot data idle": _Flood("copy"),
    "a scan of the log": _Flood("scan"),
    "an index range of the log": _Flood("index"),
    "inserts, hot data kept": _Flood("insert", keep=True, paced=True, simulated=False),
    "inserts at full speed, hot data kept": _Flood("insert", keep=True, simulated=False),
    "inserts into another cluster": _Flood("insert", elsewhere=True, simulated=False),
}


def _settings(model: Scaled) -> Mapping[str, str]:
    return {
        "shared_buffers": kilobytes(model.size_bytes("shared_buffers")),
        "autovacuum": "off",
        "max_parallel_workers_per_gather": "0",
        "max_connections": "20",
        "enable_bitmapscan": "off",
        "synchronize_seqscans": "off",
    }


@contextmanager
def _opened(model: Scaled, place: Place) -> Iterator[Step]:
    settings = _settings(model)
    hot = model.size_bytes("hot") // 8192
    log = model.size_bytes("log") // 8192
    looks = model.size_bytes("shared_buffers") // 8192 >= _LEAST_LOOKED_BLOCKS
    with Cluster.create(place.bindir, settings, work_dir=place.work_dir) as cluster:
        cluster.create_extensions(_DATABASE, "pg_prewarm", "pg_buffercache")
        make_spread_table(cluster, _DATABASE, "hot", hot)
        rows = log * _ROWS_OF_PAGE
        run_sql(
            cluster,
            _DATABASE,
            _MAKE_LOG.format(name="old_log"),
            _FILL_LOG.format(name="old_log", rows=rows),
            "CREATE INDEX old_log_id ON old_log (id)",
            "VACUUM (FREEZE, ANALYZE) old_log",
            f"COPY old_log TO '{cluster.data_directory}/log.copy'",
        )

        [[index]] = run_sql(cluster, _DATABASE, "SELECT pg_relation_size('old_log_id') / 8192")

        def step(job: str, seed: int) -> Done:
            flood = _FLOODS[job]
            begin = time.monotonic()
            draws = _Draws(hot, log, flood, seed, share=model.parameter("used_each_round"))
            cluster.restart()
            run_sql(
                cluster,
                _DATABASE,
                "DROP TABLE IF EXISTS log",
                _MAKE_LOG.format(name="log"),
                "CHECKPOINT",
                "SELECT pg_prewarm('hot')",
            )
            read_pages(cluster, _DATABASE, "hot", draws.before)
            setup_seconds = time.monotonic() - begin
            with _other(flood, place, settings) as other, _kept(flood, cluster, model.size_bytes("hot")):
                pauses = _Pauses(model) if flood.paced else None
                over_time = _flood(cluster, other or cluster, draws, pauses, looks=looks)
                values = {f"{job}: measured": _left(cluster)}
            values |= {f"{job}: after {number} rounds": left for number, left in over_time.items()}
            if flood.simulated:
                values[f"{job}: simulated"] = _simulated(model, cluster, draws, index)
            elapsed = time.monotonic() - begin
            return Done(values, setup_seconds=setup_seconds, measure_seconds=elapsed - setup_seconds)

        yield step


class _Draws:
    """The accesses of a run, drawn from a seed.

    Attributes:
        before: hot pages that are read before the flood.
        between: those that are read after each round.
    """

    def __init__(self, hot: int, log: int, flood: _Flood, seed: int, *, share: float) -> None:
        random = np.random.default_rng(seed)
        self.flood = flood
        self.hot = hot
        self.log = log
        self.round = -(-log // _ROUNDS)
        self.before = np.concatenate([random.permutation(hot) for _ in range(_USES)])
        count = max(1, round(hot * share)) if flood.in_use else 0
        self.between = [random.integers(0, hot, count) for _ in range(_ROUNDS)]


class _Pauses:
    """Pauses between the rounds of a flood, in the ratio of the scale.

    A pool of an eighth is flooded in an eighth of the time, but what works by the clock, as `warm keep` does,
    is not faster for that. With pauses the flood takes as long as in a pool of the article's size.
    """

    def __init__(self, model: Scaled) -> None:
        self._times = model.scale - 1
        self._longest_seconds = model.parameter("longest_pause_seconds")

    def after(self, seconds: float) -> None:
        """Pause after a round that took `seconds`."""
        time.sleep(min(self._longest_seconds, seconds * self._times))


def _flood(
    cluster: Cluster, logging: Cluster, draws: _Draws, pauses: _Pauses | None, *, looks: bool
) -> dict[int, float]:
    """Do what the job does to the log, and read hot pages between.

    Returns:
        With `looks` which part of the hot table lies in shared_buffers, by the number of rounds; nothing
        where a flood has no rounds.
    """
    rows = draws.round * _ROWS_OF_PAGE
    statements = {
        "insert": _FILL_LOG.format(name="log", rows=rows),
        "copy": f"COPY log FROM '{cluster.data_directory}/log.copy'",
        "scan": "SELECT count(*) FROM old_log",
        "index": "SELECT count(at) FROM old_log WHERE id > 0",
    }
    statement = statements[draws.flood.kind]
    if draws.flood.kind != "insert":
        before = "SET enable_seqscan = off" if draws.flood.kind == "index" else "SELECT 1"
        run_sql(logging, _DATABASE, before, statement)
        return {}
    left = {0: _left(cluster)} if looks else {}
    with open_sessions(logging, _DATABASE, 1) as [session]:
        for number, pages in enumerate(draws.between, 1):
            begin = time.monotonic()
            run_in(session, statement)
            if pauses is not None:
                pauses.after(time.monotonic() - begin)
            if len(pages):
                read_pages(cluster, _DATABASE, "hot", pages)
            if looks and number % _LOOKED_EVERY == 0:
                left[number] = _left(cluster)
    return left


@contextmanager
def _other(flood: _Flood, place: Place, settings: Mapping[str, str]) -> Iterator[Cluster | None]:
    """Make another cluster with the same settings, where the log shall live in one."""
    if not flood.elsewhere:
        yield None
        return
    with Cluster.create(place.bindir, settings, work_dir=place.work_dir) as cluster:
        run_sql(cluster, _DATABASE, _MAKE_LOG.format(name="log"))
        yield cluster


def _kept(flood: _Flood, cluster: Cluster, size_bytes: int) -> AbstractContextManager[object]:
    """Keep the hot table resident as `pgsweep warm keep` does, where the job says so."""
    if not flood.keep:
        return nullcontext()
    options = KeepOptions(names=["hot"], budget_bytes=round(size_bytes * 1.1))
    return keeping(cluster.conninfo(_DATABASE), options)


def _left(cluster: Cluster) -> float:
    """Return which part of the hot table lies in shared_buffers."""
    return held(cluster, _DATABASE, "hot").pool


def _simulated(model: Scaled, cluster: Cluster, draws: _Draws, index: int) -> float:
    """Return the same by the simulated pool.

    Args:
        model: the experiment.
        cluster: whose rules hold.
        draws: the accesses.
        index: blocks of the index of the log, which a query by it reads between those of the table.
    """
    hot, log = draws.hot, draws.log
    size_blocks = model.size_bytes("shared_buffers") // 8192
    hot_pages = np.arange(hot, dtype=np.uint32)
    log_pages = np.arange(hot, hot + log, dtype=np.uint32)
    pieces: list[NDArray[np.uint32]] = [draws.before.astype(np.uint32)]
    flags: list[NDArray[np.uint8]] = [np.zeros(len(draws.before), dtype=np.uint8)]
    owned = _FLAGS[draws.flood.kind]
    if draws.flood.kind == "insert":
        for number, pages in enumerate(draws.between):
            new = log_pages[number * draws.round : (number + 1) * draws.round]
            pieces += [np.repeat(new, _MOST_USES), pages.astype(np.uint32)]
            first = np.zeros(len(new) * _MOST_USES, dtype=np.uint8)
            first[::_MOST_USES] = EXTENSION
            flags += [first, np.zeros(len(pages), dtype=np.uint8)]
    elif draws.flood.kind == "index":
        places = np.linspace(0, log, index, endpoint=False).astype(np.int64)
        index_pages = np.arange(hot + log, hot + log + index, dtype=np.uint32)
        pieces.append(np.insert(log_pages, places, index_pages))
        flags.append(np.zeros(log + index, dtype=np.uint8))
    else:
        pieces.append(log_pages)
        flags.append(np.full(log, owned, dtype=np.uint8))
    every = np.concatenate(pieces)
    ring = owned & ~EXTENSION
    owners = np.arange(len(every) - log, len(every), dtype=np.uint64) if ring else np.zeros(0, np.uint64)
    found = replay_outcomes(
        every,
        size_blocks,
        Rules(cluster.binaries.major, max_backends=_max_backends(cluster)),
        flags=np.concatenate(flags),
        owner_access=owners,
        owner=np.zeros(len(owners), dtype=np.uint32),
        owner_blocks=np.array([log] if ring else [], dtype=np.uint32),
        warm=PoolContents(hot_pages, np.ones(hot, dtype=np.uint8)),
    )
    return float(np.isin(hot_pages, found["buffer_pages"]).mean())


_FLAGS: Final = {"insert": EXTENSION, "copy": BULKWRITE | EXTENSION, "scan": BULKREAD, "index": 0}


def _max_backends(cluster: Cluster) -> int:
    names = ("max_connections", "autovacuum_worker_slots", "max_worker_processes", "max_wal_senders")
    chosen = ", ".join(f"'{name}'" for name in names)
    rows = run_sql(cluster, _DATABASE, f"SELECT setting::int FROM pg_settings WHERE name IN ({chosen})")
    return sum(int(value) for (value,) in rows) + 2


PROTOCOL = Protocol(_settings, _opened)
