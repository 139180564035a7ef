"""Record evidence with SQL alone: snapshots of pg_buffercache at random times, and the counters beside them.

Works on any server that has pg_buffercache, hosted ones too; needs membership in pg_monitor, nothing on the
host. Where it runs there all the same, as root or the server's user, it also keeps what the host counts of
the server's disk reads and of its page cache. The session is read-only, has timeouts and takes no lock on a
user's relation. When snapshots are taken and what else is kept is described in snapshots.py.

It cannot see accesses between two snapshots other than through counters, nor which backend made them; rates
of pages that always stand at usage_count 5 cannot be distinguished.
"""

from __future__ import annotations

import threading
from pathlib import Path

from pgsweep.evidence.observe import first_meta, seed_of, session
from pgsweep.evidence.outlook import Judge
from pgsweep.evidence.snapshot_schedule import SnapshotSchedule
from pgsweep.evidence.snapshots import Course, Recording, note_sample, sample_of
from pgsweep.evidence.store import EvidenceWriter
from pgsweep.host.postmaster import search
from pgsweep.pg.catalog.buffercache import Snapshot, SnapshotReader
from pgsweep.pg.catalog.server import Relation, Server, read_postmaster, read_server, require_buffercache
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import RecordResult
from pgsweep.units import format_count, format_percent


def record_sql(
    conninfo: str,
    output: Path,
    *,
    seconds: float | None = None,
    max_snapshots: int | None = None,
    rng_seed: int | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    judge: Judge | None = None,
    budget: float | None = None,
    overwrite: bool = False,
    sample_blocks: int | None = None,
    blocks_cached: bool = True,
) -> RecordResult:
    """Record snapshots and counters of a running server into a folder of evidence.

    The result says in `ended_by` why it ended: `enough` (it suffices), `time` or `limit` (as asked),
    `still` (nothing was evicted), `interrupt`, `cancelled` (somebody cancelled a statement), `refused` (the
    extension was dropped or a right taken away) or `server` (the connection was lost); in all cases the
    evidence is valid up to there.

    Args:
        conninfo, output, seconds, rng_seed, progress, stop, judge, budget: as for `record` (record.py).
        max_snapshots: end after this number.
        overwrite: replace evidence that is there already.
        sample_blocks: transfer about this number of blocks a snapshot; None decides by the size of the pool.
        blocks_cached: keep which blocks the page cache holds at both ends, where the server is on this host.

    Raises:
        ConnectionFailed: the server cannot be reached, or went away before the first snapshot.
        MissingAbility: pg_buffercache is missing or may not be read; the server is too old.
        EvidenceError: the evidence cannot be written.
        KeyboardInterrupt: interrupted before the first snapshot.
    """
    progress = progress or NullListener()
    seed = seed_of(rng_seed)
    with session(conninfo, progress) as connection:
        schema = require_buffercache(connection)
        server = read_server(connection)
        sample = sample_of(server, seed, sample_blocks)
        reader = SnapshotReader(
            connection,
            schema,
            server.shared_buffers_blocks,
            modulus=sample.modulus,
            offsets=sample.offsets,
        )
        # None where the server runs elsewhere, or where this user may not look into it.
        postmaster_pid = search(*read_postmaster(connection)).pid
        meta = first_meta(
            connection,
            "sql",
            server,
            postmaster_pid=postmaster_pid,
            timed=False,
            sampling=sample.to_meta(seed),
        )
        with EvidenceWriter(output, meta, overwrite=overwrite) as writer:
            course = Course(
                seconds=seconds,
                max_snapshots=max_snapshots,
                seed=seed,
                judge=judge,
                budget=budget,
                progress=progress,
                stop=stop or threading.Event(),
            )
            view = _SqlView(server, reader)
            recording = Recording(
                connection,
                server,
                view,
                writer,
                course,
                postmaster_pid=postmaster_pid,
                blocks_cached=blocks_cached,
            )
            note_sample(sample, progress)
            return recording.run()


class _SqlView:
    """The pool as pg_buffercache shows it."""

    source = "sql"
    loads_server = True

    def __init__(self, server: Server, reader: SnapshotReader) -> None:
        self._server = server
        self._reader = reader

    def check(self, relations: list[Relation], databases: dict[int, str]) -> None:
        """Accept it: the server itself reports it."""

    def take(self) -> Snapshot:
        return self._reader.take()

    def cost(self, schedule: SnapshotSchedule, counters_share: float) -> tuple[float, str]:
        share = schedule.share + counters_share
        memory_bytes = self._reader.server_memory_bytes
        memory = f" and {memory_bytes >> 20} MB of memory" if memory_bytes > 64 << 20 else ""
        return share, (
            f"expected cost: one snapshot of {format_count(self._server.shared_buffers_blocks)} buffers "
            f"takes {schedule.cost_seconds * 1e3:.1f} ms of one backend{memory}; all of it "
            f"{format_percent(share, 2)} of its time"
        )

    def measured(self, _seconds: float) -> dict[str, float]:
        return {}
