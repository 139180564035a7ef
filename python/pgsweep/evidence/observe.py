"""What every recording keeps beside its own table: cumulative counters, and relations at start and end."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from pgsweep._native import __version__
from pgsweep.evidence.host_memory import memory_counters, memory_facts
from pgsweep.evidence.place import place_text
from pgsweep.evidence.schema import TABLES, EvidenceMeta, is_identifier
from pgsweep.evidence.writer import EvidenceWriter
from pgsweep.host.machine import boot_clock
from pgsweep.pg.catalog.counters import Counter, CounterReader
from pgsweep.pg.catalog.place import read_place
from pgsweep.pg.catalog.server import Relation, Server, read_cluster
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.failures import SessionLost, first_line
from pgsweep.pg.session.refusals import explained
from pgsweep.progress import Progress
from pgsweep.records.prediction import RecordResult
from pgsweep.versions import beyond_tested

RELATION_SECONDS = 5.0
"""Counters of relations, of pg_stat_io and of the writers are sampled this often..."""

RELATION_SHARE = 0.005
"""... or less, so that they take at most this share of time on servers with very many relations."""


@contextlib.contextmanager
def session(conninfo: str, progress: Progress) -> Iterator[Connection]:
    """Open the session of a recording, and close it in the end; errors of the server come explained.

    Raises:
        ConnectionFailed: the server cannot be reached, or went away.
    """
    progress.stage("reading the catalog")
    connection = connect(conninfo)
    with contextlib.closing(connection), explained():
        yield connection


def first_meta(
    connection: Connection,
    source: str,
    server: Server,
    *,
    postmaster_pid: int | None = None,
    timed: bool = True,
    depths: bool = False,
    host: dict[str, str] | None = None,
    sampling: dict[str, float] | None = None,
) -> EvidenceMeta:
    """Return what is known at the beginning of a recording.

    Args:
        connection: a session on the server.
        source: of the recording.
        server: that is observed.
        postmaster_pid: where it runs on this host, which is then described.
        timed: reads are timed there too (host_memory.py).
        depths: and those that are in flight at once (disk_latency.py).
        host: more of it.
        sampling: what is kept of each snapshot.
    """
    here = {"server": server.place, "place": place_text(read_place(connection, postmaster_pid))}
    if postmaster_pid is not None:
        here |= {
            "kernel": platform.release(),
            "processors": str(os.cpu_count() or 1),
            "postmaster_pid": str(postmaster_pid),
            **memory_facts(
                postmaster_pid, server.version_num, server.block_size_bytes, timed=timed, depths=depths
            ),
        }
    boot = boot_clock()
    if boot is not None:
        here |= {"boot_id": boot[0], "started_boot_seconds": f"{boot[1]:.3f}"}
    cluster = read_cluster(connection)
    return EvidenceMeta(
        source=source,
        pgsweep_version=__version__,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        server_version_num=server.version_num,
        server_version=server.version,
        system_identifier=cluster[0] if cluster is not None and is_identifier(cluster[0]) else "",
        block_size_bytes=server.block_size_bytes,
        shared_buffers_blocks=server.shared_buffers_blocks,
        settings=server.settings,
        database=server.database,
        database_oid=server.database_oid,
        host={"server": server.place, **here, **(host or {})},
        sampling=sampling or {},
    )


def note_newer(server: Server, progress: Progress) -> list[str]:
    """Say that the server is newer than the versions tested, if so; return it for the result.

    It is not stored in the evidence, because a later pgsweep may know the version.
    """
    newer = beyond_tested(server.version_num)
    if newer is None:
        return []
    progress.note(newer)
    return [newer]


def lost_at_end(error: SessionLost) -> str:
    """Return the warning that the connection was lost when the last counters were read, after all else."""
    reason = first_line(error)
    return f"the connection to the server was lost at the end ({reason}); the last counters are missing"


def closed(
    writer: EvidenceWriter,
    meta: EvidenceMeta,
    *,
    snapshots: int,
    accesses: int,
    expected: float | None,
    warnings: list[str],
) -> RecordResult:
    """Close the evidence, and return what was recorded.

    Args:
        writer: of the evidence.
        meta: what its record says at the end.
        snapshots: how many there are.
        accesses: how many were counted.
        expected: share of time that the recording was expected to take.
        warnings: for whoever recorded it.
    """
    writer.close(meta)
    return RecordResult(
        path=str(writer.path),
        source=meta.source,
        seconds=meta.seconds,
        shared_buffers_bytes=meta.shared_buffers_blocks * meta.block_size_bytes,
        snapshots=snapshots,
        accesses=accesses,
        lost_events=meta.lost_events,
        bytes_written=writer.bytes_written,
        ended_by=meta.ended_by,
        expected_overhead_ratio=expected,
        measured_overhead_ratio=meta.overhead["measured_share"],
        warnings=warnings,
    )


def seed_of(rng_seed: int | None) -> int:
    """Return the seed that was asked for, or a new one, which is stored in the evidence."""
    return int(np.random.SeedSequence().generate_state(1)[0]) if rng_seed is None else rng_seed


class CounterTable:
    """Writes samples of counters into evidence.

    The first sample has every counter that is not zero; a later one only those that changed: what is not
    listed is as it was (or zero). Where none changed, one is listed all the same. Counters of databases and
    of the background writer are read in every sample, the others in some, and in the last.

    Attributes:
        sampled_seconds: when the last sample was read.
        hole: the longest time between two samples, and when it began, in seconds.
        was_reset: the statistics of the recording's database were reset meanwhile.
    """

    def __init__(self, writer: EvidenceWriter) -> None:
        self._writer = writer
        self._database = writer.meta.database
        self._sample = 0
        self.sampled_seconds = 0.0
        self.hole = 0.0, 0.0
        # By scope and name, then by object: of 100,000 relations each has several.
        self._last: dict[tuple[str, str], dict[str, float]] = {}
        self.was_reset = False

    def write(self, seconds: float, counters: Iterable[Counter]) -> None:
        """Keep a sample.

        Args:
            seconds: when it was read; half way through the reading is the best estimate.
            counters: what was read.

        Raises:
            EvidenceError: it cannot be written.
        """
        changed, unchanged = [], None
        # Reading the counters may fail in their midst: then there is no such sample.
        for counter in counters:
            last = self._last.setdefault((counter.scope, counter.name), {})
            before = last.get(counter.object, 0.0)
            if counter.value != before or (counter.scope == "database" and counter.object not in last):
                changed.append(counter)
            else:
                unchanged = counter
        if not changed and unchanged is not None:
            # A quiet time is part of the observation.
            changed = [unchanged]
        if changed:
            self._append(self._sample, seconds, changed)
        for counter in changed:
            last = self._last[counter.scope, counter.name]
            # Everything of a database is cumulative, so less than before means that somebody reset the
            # statistics; of another one, that it was dropped.
            ours = counter.scope == "database" and counter.object == self._database
            self.was_reset |= ours and counter.value < last.get(counter.object, 0.0)
            last[counter.object] = counter.value
        self.hole = max(self.hole, (seconds - self.sampled_seconds, self.sampled_seconds))
        self.sampled_seconds = seconds
        self._sample += 1

    def write_created(self, counters: Sequence[Counter]) -> None:
        """Keep counters of relations not known before, which began at 0 meanwhile, with the last sample.

        Raises:
            EvidenceError: they cannot be written.
        """
        self._append(max(self._sample - 1, 0), self.sampled_seconds, [c for c in counters if c.value])

    def add(self, seconds: float, counter: Counter) -> None:
        """Keep a counter of our own beside the server's, under the number of the last sample."""
        self._append(max(self._sample - 1, 0), seconds, [counter])

    def add_of_host(self, postmaster_pid: int | None, seconds: float | None = None) -> None:
        """Add what the host counts of a server by now; nothing where it does not run on this host.

        Args:
            postmaster_pid: of the server; None where it runs elsewhere, or may not be looked into.
            seconds: when; the last sample's time by default, which has just been taken. Times at which the
                server's counters were not read would count as samples of these.
        """
        if postmaster_pid is not None:
            for counter in memory_counters(postmaster_pid):
                self.add(self.sampled_seconds if seconds is None else seconds, counter)

    def value(self, scope: str, name: str, object_: str = "") -> float:
        """Return the last value of a counter."""
        return self._last.get((scope, name), {}).get(object_, 0.0)

    def accesses(self, database: str) -> float:
        """Return the accesses of a database since its statistics began."""
        return self.value("database", "blks_hit", database) + self.value("database", "blks_read", database)

    def _append(self, sample: int, seconds: float, counters: Sequence[Counter]) -> None:
        self._writer.append(
            "counters",
            {
                "sample": [sample] * len(counters),
                "seconds": [seconds] * len(counters),
                "scope": [counter.scope for counter in counters],
                "object": [counter.object for counter in counters],
                "name": [counter.name for counter in counters],
                # blks_read is a difference of two counters that are read one after the other, so it may be
                # a little below 0 where hardly anything was read.
                "value": [max(counter.value, 0.0) for counter in counters],
            },
        )


class CounterLog(CounterTable):
    """Samples a server's counters into evidence: the slower ones every few seconds, and at both ends.

    Args:
        now: seconds since the beginning of the recording.
    """

    def __init__(self, reader: CounterReader, writer: EvidenceWriter, now: Callable[[], float]) -> None:
        super().__init__(writer)
        self.reader = reader
        self._now = now
        self._slow_due = 0.0
        self.spent_seconds = 0.0

    def sample(self, *, full: bool = False) -> bool:
        """Take a sample, and return whether it has the slower counters; `full` has them even if not due.

        Raises:
            DriverError: the connection was lost.
            EvidenceError: the sample cannot be written.
        """
        begin = time.monotonic()
        seconds = self._now()
        counters: Iterable[Counter] = self.reader.databases() + self.reader.writers()
        slow = full or seconds >= self._slow_due
        slow_begin = time.monotonic()
        if slow:
            counters = chain(counters, self.reader.each_relation(), self.reader.io())
        self.write((seconds + self._now()) / 2, counters)
        end = time.monotonic()
        if slow:
            self._slow_due = seconds + max(RELATION_SECONDS, (end - slow_begin) / RELATION_SHARE)
        self.spent_seconds += end - begin
        return slow

    def count(self, oids: Sequence[int]) -> None:
        """Count these relations from now on; those not known before began at 0, and join the last sample.

        Raises:
            DriverError: the connection was lost.
            EvidenceError: they cannot be written.
        """
        new = sorted(set(oids) - set(self.reader.relation_oids))
        self.reader.relation_oids = list(oids)
        if new:
            self.write_created(self.reader.relations(new))


def relation_columns(
    begin: Iterable[Relation], end: Iterable[Relation] | None, databases: dict[int, str]
) -> dict[str, list[Any]]:
    """Return the rows of the table `relations`.

    A relation rewritten in between has two rows (one for each file); a file that did not exist at one of
    the two times has no blocks then. Without an end (the server went away) the sizes of the beginning
    stand for both.
    """
    before = {(r.tablespace_oid, r.database_oid, r.filenode): r for r in begin}
    after = before if end is None else {(r.tablespace_oid, r.database_oid, r.filenode): r for r in end}
    rows: dict[str, list[Any]] = {name: [] for name in TABLES["relations"]}
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        known = new or old
        assert known is not None
        values = {
            "db": known.database_oid,
            "database": databases.get(known.database_oid, ""),
            "schema": known.schema,
            "name": known.name,
            "kind": known.kind,
            "oid": known.oid,
            "spc": known.tablespace_oid,
            "rel": known.filenode,
            "table_oid": known.table_oid,
            "blocks_begin": old.main_blocks if old else 0,
            "blocks_end": new.main_blocks if new else 0,
            "fsm_blocks": known.fsm_blocks,
            "vm_blocks": known.vm_blocks,
            "tuples_per_block": known.tuples_per_block,
        }
        for name, value in values.items():
            rows[name].append(value)
    return rows
