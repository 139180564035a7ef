"""Runs a generated case: one aged database, a truth at each size from a copy of it, one observation.

1. The database is made and aged: a minute's transactions, as fast as they can, in a pool that holds
   everything. What was used, and how often, is then seen in it.
2. The server is stopped. Each size gets a copy of the data; its pool is filled with what the ageing used
   most, and with other blocks at random where there is room left. The workload runs on: in a hurry, then
   at its rate, then the stretches that are counted. From a random filling alone a large pool would take
   many minutes to become what the workload makes of it. What reads whole tables takes no part in the
   ageing, and blocks of these tables are not drawn: a table larger than a quarter of the pool is read
   through a ring and never gets into it, unless it is there already; then it would stay, as scans hit it.
   A server that was started with that size holds none of it.
3. The observation is one more such run at today's size, with all three recordings at once around the
   counted stretches. What the server counted in it stands beside the truth at that size, so that any
   disturbance shows.

All runs make the same transactions. What differs between them is the pool, and the order in which clients
come.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg

from benchmarks.calibration.generator import expected_per_second
from benchmarks.calibration.specification import Specification, Stream
from benchmarks.calibration.stretches import Life, Stretch, copy_data, make_database
from pgsweep.errors import PgsweepError
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.trace import record_trace
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.testbed.filling import PoolContent, fill_pool, pool_content
from pgsweep.testbed.pgbench import DATABASE
from pgsweep.units import BLOCK_BYTES

SOURCES = ("sql", "peek", "trace")
_RECORDERS: dict[str, Callable[..., Any]] = {"sql": record_sql, "peek": record_peek, "trace": record_trace}
_AT_ONCE_SECONDS = 60.0

_PRIMARY_BUFFERS = "32MB"

_ROOM = 1.3
"""The ageing's pool relative to the database: nothing is evicted, so that it ends with all that was used."""

MOST_ACCESSES_PER_SECOND = 8_000.0
"""What the ageing shows to be heavier than this runs slower: eight servers share a machine."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Nominal lengths of the parts of a run, in seconds: they set numbers of transactions.

    Attributes:
        age_seconds: the ageing, made as fast as it can.
        warm_seconds: the first of each run, made in a hurry.
        hurry: how much faster.
        stretch_seconds: of each stretch; the first is not counted.
        stretches: how many are counted.
    """

    age_seconds: float = 60.0
    warm_seconds: float = 14.0
    hurry: float = 3.0
    stretch_seconds: float = 8.0
    stretches: int = 4


class SizeTruth(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted at one size.

    Attributes:
        unused_blocks: buffers that held nothing at the end.
        before: the stretch before the counted ones.
    """

    blocks: int
    unused_blocks: int
    before: Stretch
    stretches: tuple[Stretch, ...]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A case that was run: its truth, and what was counted while it was observed.

    Attributes:
        pace: the streams' rates relative to the specification's, after the ageing.
        server_version_num: of the server.
        database_blocks: before the ageing.
        truth: by size, ascending.
        observed: today's size, with the recordings running.
        recorded_seconds: by source, when its recording began, by the host's monotonic clock.
        failed: by source, why there is no recording.
        seconds: how long the case took, by part.
    """

    specification: Specification
    pace: float
    lengths: Lengths
    server_version_num: int
    database_blocks: int
    truth: tuple[SizeTruth, ...]
    observed: SizeTruth
    recorded_seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}


def run_case(
    spec: Specification,
    folder: Path,
    *,
    bindir: Path | None = None,
    lengths: Lengths | None = None,
    at_once: int = 8,
    work_dir: Path | None = None,
) -> Case:
    """Run a case; write `case.json` and a folder of evidence for each source.

    Args:
        spec: what to run.
        folder: is made; holds `sql.evidence`, `peek.evidence`, `trace.evidence`, `case.json` at the end.
        bindir: the server's bin folder; the wheel's by default.
        lengths: of the parts of a run.
        at_once: how many servers run at the same time.
        work_dir: where data directories are made.

    Raises:
        ClusterError: a server does not start, or the workload fails.
        psycopg.Error: the tables cannot be made.
    """
    began = time.monotonic()
    parts = lengths or Lengths()
    folder.mkdir(parents=True, exist_ok=True)
    sizes = spec.sizes_blocks()
    settings = {**spec.settings, "shared_buffers": f"{sizes[-1] * BLOCK_BYTES // 1024}kB"}
    with Cluster.create(bindir, settings, work_dir=work_dir) as first:
        first.create_extensions("postgres", "pg_buffercache")
        make_database(first, spec)
        database_blocks = _database_blocks(first)
        made_seconds = time.monotonic() - began
        content, pace = _age(first, spec, parts)
        aged_seconds = time.monotonic() - began
        first.stop()
        runs = _Runs(slowed(spec, pace), parts, first.data_directory, content, bindir, work_dir)
        recorded: dict[str, float] = {}
        failed: dict[str, str] = {}
        with ThreadPoolExecutor(at_once) as threads:
            try:
                observing = threads.submit(runs.observed, folder, recorded, failed)
                # The largest first: they take longest.
                jobs = {size: threads.submit(runs.measure, size) for size in reversed(sizes)}
                observed = observing.result()
                truth = tuple(jobs[size].result() for size in sizes)
            finally:
                threads.shutdown(wait=True, cancel_futures=True)
                runs.close()
        case = Case(
            specification=spec,
            pace=pace,
            lengths=parts,
            server_version_num=first.version_num,
            database_blocks=database_blocks,
            truth=truth,
            observed=observed,
            recorded_seconds=recorded,
            failed=failed,
            seconds={
                "made": round(made_seconds, 1),
                "aged": round(aged_seconds - made_seconds, 1),
                "all": round(time.monotonic() - began, 1),
            },
        )
    (folder / "case.json").write_bytes(msgspec.json.encode(case))
    return case


def read_case(folder: Path) -> Case:
    """Return what `run_case` wrote."""
    return msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)


def hottest(content: PoolContent, blocks: int, seed: int) -> PoolContent:
    """Return the most used of a pool's blocks, as many as a pool of that size holds."""
    names = list(content.blocks)
    if not names or content.count() <= blocks:
        return content
    counts = np.concatenate([content.usage_counts[name] for name in names])
    order = np.lexsort((np.random.default_rng(seed).random(len(counts)), counts))[::-1]
    kept = np.zeros(len(counts), dtype=bool)
    kept[order[:blocks]] = True
    edges = np.cumsum([len(content.blocks[name]) for name in names])[:-1]
    parts = dict(zip(names, np.split(kept, edges), strict=True))
    return PoolContent(
        blocks={name: content.blocks[name][parts[name]] for name in names},
        usage_counts={name: content.usage_counts[name][parts[name]] for name in names},
    )


def slowed(spec: Specification, pace: float) -> Specification:
    """Return the specification with all rates multiplied."""
    streams = tuple(
        msgspec.structs.replace(
            stream, transactions_per_second=round(stream.transactions_per_second * pace, 4)
        )
        for stream in spec.streams
    )
    return msgspec.structs.replace(spec, streams=streams)


def _age(cluster: Cluster, spec: Specification, parts: Lengths) -> tuple[PoolContent, float]:
    """Run the ageing; return what the pool then holds, and how fast to go on."""
    room = max(spec.sizes_blocks()[-1], round(_ROOM * _database_blocks(cluster)))
    cluster.restart({"shared_buffers": f"{room * BLOCK_BYTES // 1024}kB"})
    others = tuple(stream for stream in spec.streams if stream not in _scanners(spec))
    with Life(cluster, msgspec.structs.replace(spec, streams=others)) as life:
        aged = life.run(parts.age_seconds, hurry=None)
    per_second = aged.accesses / parts.age_seconds
    per_second += sum(expected_per_second(stream, spec.tables) for stream in _scanners(spec))
    return pool_content(cluster), round(min(1.0, MOST_ACCESSES_PER_SECOND / max(per_second, 1.0)), 3)


def _scanners(spec: Specification) -> tuple[Stream, ...]:
    """Return the streams that read whole tables."""
    return tuple(
        stream
        for stream in spec.streams
        if any(s.kind in {"scan", "analytic"} for script in stream.scripts for s in script.statements)
    )


def _scanned(spec: Specification) -> Callable[[str], bool]:
    """Return what says of a relation's name whether it is a table or partition that is read as a whole."""
    tables = {
        spec.tables[number].name
        for stream in _scanners(spec)
        for script in stream.scripts
        for statement in script.statements
        for number in (statement.table, *((statement.other,) if statement.kind == "analytic" else ()))
    }
    names = re.compile(rf"public\.({'|'.join(sorted(tables))})(_\d+)?") if tables else None
    return lambda name: names is not None and names.fullmatch(name) is not None


def _database_blocks(cluster: Cluster) -> int:
    with psycopg.connect(cluster.conninfo()) as connection:
        row = connection.execute("SELECT pg_database_size(%s)", (DATABASE,)).fetchone()
    assert row is not None
    return int(row[0]) // BLOCK_BYTES


class _Runs:
    """Runs from copies of one data directory, on clusters that are made when needed and used again."""

    def __init__(
        self,
        spec: Specification,
        parts: Lengths,
        source: Path,
        content: PoolContent,
        bindir: Path | None,
        work_dir: Path | None,
    ) -> None:
        self._spec = spec
        self._parts = parts
        self._source = source
        self._content = content
        self._bindir = bindir
        self._work_dir = work_dir
        self._idle: queue.SimpleQueue[Cluster] = queue.SimpleQueue()
        self._all: list[Cluster] = []

    def measure(self, blocks: int) -> SizeTruth:
        """Return the truth at a size."""
        return self._run(blocks, lambda _cluster, count: count())

    def observed(self, folder: Path, recorded: dict[str, float], failed: dict[str, str]) -> SizeTruth:
        """Return what is counted at today's size while all recordings run, and keep these."""

        def observe(cluster: Cluster, count: Callable[[], tuple[Stretch, ...]]) -> tuple[Stretch, ...]:
            seconds = self._parts.stretches * self._parts.stretch_seconds
            with _Recordings(cluster, folder, seconds, self._spec.seed, failed) as begun:
                recorded.update(begun)
                return count()

        return self._run(self._spec.observed_blocks, observe)

    def close(self) -> None:
        """Remove all clusters."""
        for cluster in self._all:
            cluster.close()

    def _run(
        self,
        blocks: int,
        around: Callable[[Cluster, Callable[[], tuple[Stretch, ...]]], tuple[Stretch, ...]],
    ) -> SizeTruth:
        parts, spec = self._parts, self._spec
        primary = self._copy(None) if spec.standby else None
        cluster = self._copy(primary)
        cluster.settings["shared_buffers"] = f"{blocks * BLOCK_BYTES // 1024}kB"
        cluster.start()
        carried = hottest(self._content, blocks, spec.seed)
        fill_pool(cluster, blocks, carried, spec.seed, not_drawn=_scanned(spec))
        with Life(cluster, spec, primary) as life:
            life.skip([parts.age_seconds])
            life.run(parts.warm_seconds, hurry=parts.hurry)
            before = life.run(parts.stretch_seconds)
            stretches = around(
                cluster,
                lambda: tuple(life.run(parts.stretch_seconds) for _ in range(parts.stretches)),
            )
            unused = life.unused_buffers()
        for one in (cluster, primary):
            if one is not None:
                one.stop(immediately=True)
                self._idle.put(one)
        return SizeTruth(blocks=blocks, unused_blocks=unused, before=before, stretches=stretches)

    def _copy(self, primary: Cluster | None) -> Cluster:
        """Return a cluster with a copy of the data: a standby, stopped, or its primary, which is started."""
        cluster = self._cluster()
        copy_data(self._source, cluster)
        if primary is not None:
            cluster.settings["primary_conninfo"] = primary.conninfo()
            (cluster.data_directory / "standby.signal").touch()
        elif self._spec.standby:
            cluster.settings["shared_buffers"] = _PRIMARY_BUFFERS
            cluster.start()
        return cluster

    def _cluster(self) -> Cluster:
        """Return a stopped cluster that nobody uses."""
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            cluster = Cluster.create(self._bindir, self._spec.settings, work_dir=self._work_dir, start=False)
            self._all.append(cluster)
            return cluster


class _Recordings:
    """All recordings of a server at once; a context that ends them.

    Raises:
        PgsweepError: they do not begin in time.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, seconds: float, seed: int, failed: dict[str, str]
    ) -> None:
        self._failed = failed
        self._stop = threading.Event()
        conninfo = cluster.conninfo(DATABASE)
        self._begun = {source: _Begun() for source in SOURCES}
        self._threads = [
            threading.Thread(target=self._record, args=(source, conninfo, folder, seconds, seed))
            for source in SOURCES
        ]

    def _record(self, source: str, conninfo: str, folder: Path, seconds: float, seed: int) -> None:
        options: dict[str, Any] = {} if source == "trace" else {"rng_seed": seed}
        try:
            _RECORDERS[source](
                conninfo,
                folder / f"{source}.evidence",
                progress=self._begun[source],
                # It paces the snapshots, and leaves time for a machine that is late: `stop` ends them.
                seconds=1.5 * seconds,
                stop=self._stop,
                overwrite=True,
                **options,
            )
        except PgsweepError as error:
            self._failed[source] = str(error)
        finally:
            self._begun[source].event.set()

    def __enter__(self) -> dict[str, float]:
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + _AT_ONCE_SECONDS
        for source, begun in self._begun.items():
            if not begun.event.wait(max(deadline - time.monotonic(), 0.0)):
                self.__exit__()
                raise PgsweepError(f"the recording by {source} did not begin in time")
        return {source: round(begun.at_seconds, 3) for source, begun in self._begun.items()}

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()


class _Begun(NullListener):
    """Notices that a recording has begun, and when."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.at_seconds = 0.0

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        """Notice the stage in which a recording records."""
        if title.startswith("recording"):
            self.at_seconds = time.monotonic()
            self.event.set()
