"""Record evidence from the server's shared memory: snapshots that cost the server nothing.

The buffer descriptors are read through /proc/PID/mem, 64 bytes a buffer; no process of the server takes part,
no lock is taken, nothing is written and no process is stopped. It needs Linux, the server's host, and root or
the server's user; no extension. A connection gives the counters and the catalog, as for snapshots by SQL.

It keeps the same snapshots as a recording by SQL, the position of the clock hand, and what the host counts of
the server's disk reads and of its page cache.

The contents of the memory are used only if they agree with what the server reports.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from pgsweep._native import PoolReader, ReadTimer
from pgsweep.commands import sudo, this_command
from pgsweep.errors import MissingAbility, NeedsRoot
from pgsweep.evidence.observe import first_meta, seed_of, session
from pgsweep.evidence.outlook import Judge
from pgsweep.evidence.processor_times import pace_timer
from pgsweep.evidence.read_timing import open_timer, timing_facts
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.snapshot_schedule import SnapshotSchedule
from pgsweep.evidence.snapshots import Course, PoolGone, Recording, note_sample, sample_of
from pgsweep.evidence.store import EvidenceWriter
from pgsweep.pg.catalog.agreement import disagreement
from pgsweep.pg.catalog.buffercache import Snapshot, snapshot_of, used_buffers
from pgsweep.pg.catalog.server import Relation, Server, read_server
from pgsweep.pg.session.connect import Connection, session_lives
from pgsweep.pg.session.postmaster import local_postmaster
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import RecordResult
from pgsweep.units import format_count, format_percent

if TYPE_CHECKING:
    from pgsweep._native import PoolTable

_OWN_SHARE: Final = 0.1
"""Of one processor, what this process takes besides reading the pool, to write and to judge what it has.
It was 4% to 7% in recordings of 15 to 113 s of a pool of 128 MB, and 10% to 15% beside other work."""


def record_peek(
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
    time_reads: bool = False,
) -> RecordResult:
    """Record snapshots from the memory of a running server on this host into a folder of evidence.

    The result says in `ended_by` why it ended, as for `record_sql`; in all cases the evidence is valid up to
    there. Its shares of overhead are the server's, whose part is the counters alone.

    Args:
        sample_blocks: keep about this number of blocks a snapshot; None decides by the size of the pool.
        time_reads: time how long reads take, by probes in the server (read_timing.py).
        others: as for `record_sql`.

    Raises:
        ConnectionFailed: the server cannot be reached, or went away before the first snapshot.
        MissingAbility: not this host, neither root nor the server's user, or a server whose memory is not
            understood; reads shall be timed, and the kernel allows no probes.
        EvidenceError: the evidence cannot be written.
        KeyboardInterrupt: interrupted before the first snapshot.
    """
    progress = progress or NullListener()
    seed = seed_of(rng_seed)
    with session(conninfo, progress) as connection:
        server = read_server(connection)
        view = PeekView(connection, server, sample_of(server, seed, sample_blocks))
        timer = view.read_timer() if time_reads else None
        meta = first_meta(
            connection,
            "peek",
            server,
            postmaster_pid=view.postmaster_pid,
            host={} if timer is None else timing_facts(timer, ""),
            sampling=view.sample.to_meta(seed),
        )
        with (
            EvidenceWriter(output, meta, overwrite=overwrite) as writer,
            contextlib.closing(pace_timer(view.postmaster_pid)) as pace,
        ):
            course = Course(
                seconds=seconds,
                max_snapshots=max_snapshots,
                seed=seed,
                judge=judge,
                budget=budget,
                progress=progress,
                stop=stop or threading.Event(),
            )
            recording = Recording(
                connection,
                server,
                view,
                writer,
                course,
                postmaster_pid=view.postmaster_pid,
                timer=timer,
                pace=pace,
                blocks_cached=blocks_cached,
            )
            note_sample(view.sample, progress)
            return recording.run()


class PeekView:
    """The pool as it lies in the server's memory.

    Args:
        connection: a session for inspection, which identifies the server's process.
        server: what the session says of it.
        sample: which blocks snapshots keep.

    Raises:
        MissingAbility: the server's memory cannot be read, or is not understood.
    """

    source = "peek"
    loads_server = False

    def __init__(self, connection: Connection, server: Server, sample: BlockSample) -> None:
        self._connection = connection
        self._server = server
        self.sample = sample
        self.postmaster_pid, self._start_time = local_postmaster(connection)
        with _abilities():
            self._reader = PoolReader(self.postmaster_pid, server.version_num, start_time=self._start_time)
            self._read()
        self._unsettled_hands = 0
        self._began_processor = time.thread_time()

    def read_timer(self) -> ReadTimer:
        """Return what times the reads of the server.

        Raises:
            MissingAbility: the kernel does not let us, or the server has no symbols.
        """
        timer, why = open_timer(self.postmaster_pid, self._start_time)
        if timer is None:
            raise MissingAbility(
                "the server's reads cannot be timed",
                cause=why,
                hint="run it as root; or leave --time-reads out",
            )
        return timer

    def check(self, relations: list[Relation], databases: dict[int, str]) -> None:
        """Compare the memory with the size of the pool, the catalog, and the server's count of used buffers.

        Raises:
            MissingAbility: they do not agree.
        """
        before = used_buffers(self._connection)
        with _abilities():
            pool = self._read()
        after = used_buffers(self._connection)
        why = disagreement(pool, self._server, before, after)
        why = why or _unknown_names(pool, self._server, relations, databases)
        if why is not None:
            raise MissingAbility(
                "the server's memory does not show what the server says",
                cause=why,
                hint="use --source sql, and please report this",
            )

    def take(self) -> Snapshot:
        """Take one snapshot.

        Raises:
            PoolGone: the server went away.
        """
        return snapshot_of(self._look())

    def cost(self, schedule: SnapshotSchedule, counters_share: float) -> tuple[float, str]:
        """Return the server's share, which is that of the counters, and the sentence that states the cost."""
        return counters_share, (
            f"expected cost: reading {format_count(self._server.shared_buffers_blocks)} buffers takes this "
            f"process {schedule.cost_seconds * 1e3:.1f} ms; with what it writes and judges it takes about "
            f"{format_percent(schedule.share + _OWN_SHARE, 0)} of one processor here, and the counters "
            f"{format_percent(counters_share, 2)} of one backend's time"
        )

    def measured(self, seconds: float) -> dict[str, float]:
        """Return the number of snapshots without the hand, and the share of a processor."""
        return {
            "unsettled_hands": float(self._unsettled_hands),
            "own_processor_share": (time.thread_time() - self._began_processor) / max(seconds, 1e-9),
        }

    def _read(self) -> PoolTable:
        whole = self.sample.modulus == 1
        offsets = None if whole else self.sample.offsets
        return self._reader.read(modulus=self.sample.modulus, offsets=offsets)

    def _look(self) -> PoolTable:
        """Read the pool.

        Raises:
            PoolGone: the server went away.
        """
        # After a crash the postmaster survives and recreates the shared memory, but our session is gone.
        if not session_lives(self._connection):
            raise PoolGone
        try:
            pool = self._read()
        except (OSError, RuntimeError) as error:
            raise PoolGone from error
        self._unsettled_hands += not pool["hand_settled"]
        return pool


def _unknown_names(
    pool: PoolTable, server: Server, relations: list[Relation], databases: dict[int, str]
) -> str | None:
    """Return why the names in the pool cannot be that server's; None if they can."""
    # What was created since the catalog was read has no name yet: a few buffers, not a tenth of all.
    if np.isin(pool["db"], [0, *databases]).mean() < 0.9:
        return "most buffers belong to databases that do not exist"
    sizes = {
        (r.tablespace_oid, r.database_oid, r.filenode): r.main_blocks
        for r in relations
        if r.measured and r.database_oid == server.database_oid
    }
    ours = (pool["db"] == server.database_oid) & (pool["fork"] == 0)
    named = zip(
        *(pool[name][ours].tolist() for name in ("spc", "db", "rel", "block")),
        strict=True,
    )
    inside = [block < sizes.get((spc, db, rel), 0) for spc, db, rel, block in named]
    if len(inside) >= 64 and sum(inside) < 0.5 * len(inside):
        return "most buffers lie outside the relations of the catalog"
    return None


@contextlib.contextmanager
def _abilities() -> Iterator[None]:
    """Turn what the reader raises into errors with cause and hint.

    Raises:
        MissingAbility: this server or our privileges do not allow it.
    """
    try:
        yield
    except RuntimeError as error:
        what, *_ = error.args
        raise MissingAbility(str(what), hint="use --source sql") from error
    except OSError as error:
        raise NeedsRoot(
            "the memory of the server's processes may not be read",
            cause=str(error.args[-1]),
            hint=f"run it as root: {sudo()}{this_command()}; or use --source sql",
        ) from error
