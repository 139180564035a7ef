"""What a recording would do to the server, without recording: `pgsweep record --dry-run`.

The session is opened, because the statements depend on the server's version and settings, and for a trace
the server's process is looked for. The texts are the very ones that a recording sends, filled in as it does;
parameters stand as $1, which is what the server gets. The system calls are those of
probe/src (tracer.rs, bpf.rs, pool.rs).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from pgsweep.errors import MissingAbility
from pgsweep.evidence.disk_latency import DEPTH_READS
from pgsweep.evidence.read_timing import EVERY_SECONDS, TIMED_SECONDS
from pgsweep.evidence.snapshots import sample_of
from pgsweep.evidence.trace import RING_BYTES
from pgsweep.host.postmaster import search
from pgsweep.host.processor_pace import ROUND_READS, ROUND_SECONDS
from pgsweep.host.processor_time import COLD_READS, COPIES, COPY_SECONDS
from pgsweep.pg.catalog.buffercache import memory_statements, snapshot_query, summary_query
from pgsweep.pg.catalog.counters import FRESH_STATISTICS
from pgsweep.pg.catalog.server import read_buffercache, read_postmaster, read_server, readable_schema
from pgsweep.pg.queries import load, numbered
from pgsweep.pg.session.connect import (
    Connection,
    connect,
    first_statement,
    session_settings,
    setting_statement,
    startup_options,
)
from pgsweep.pg.session.postmaster import local_postmaster
from pgsweep.pg.session.refusals import explained
from pgsweep.records.prediction import PlanStep, RecordPlan
from pgsweep.units import format_plain

_Steps = tuple[tuple[str, str, int], ...]

_ONCE: Final = "once, before the observation"
_SESSION: Final[_Steps] = (
    # Query, when it is sent, the oldest version it is sent to. A name in capitals has no file in pg/queries.
    ("STARTUP", "with the connection", 140000),
    ("FIRST", "first of all", 140000),
)
_PLACE: Final[_Steps] = (
    ("provider", _ONCE, 140000),
    ("setting_sources", "once, before the observation ($1: none)", 140000),
)
_CATALOG: Final[_Steps] = (
    ("databases", _ONCE, 140000),
    ("relations", "before and after the observation, and where the catalog was changed meanwhile", 140000),
    ("sizes", "after each of them, for up to 1000 new relations at a time ($1: their oids)", 140000),
    ("temporary", "with each `relations`", 140000),
    ("FRESH_STATISTICS", _ONCE, 150000),
)
_COUNTERS: Final[_Steps] = (
    ("count_databases", "with every snapshot, at least every 5 seconds ($1: oids of databases)", 140000),
    ("count_writers", "with every snapshot, at least every 5 seconds", 140000),
    ("count_relations", "every 5 seconds or less often ($1: oids of relations)", 140000),
    ("count_io", "every 5 seconds or less often", 160000),
    ("settle", "once, when each of these has run once", 140000),
)
_SNAPSHOTS: Final[_Steps] = (
    *_SESSION,
    ("buffercache", _ONCE, 140000),
    ("extension_trust", "once, before the observation ($1: the extension, $2: what is used)", 140000),
    ("server", _ONCE, 140000),
    ("settings", _ONCE, 140000),
    ("MEMORY", _ONCE, 140000),
    ("postmaster", _ONCE, 140000),
    *_PLACE,
    *_CATALOG,
    (
        "SNAPSHOT",
        "a few times first, to measure its cost; then at a random time in each interval",
        140000,
    ),
    *_COUNTERS,
)

_ON_HOST: Final[_Steps] = (
    *_SESSION,
    ("server", _ONCE, 140000),
    ("settings", _ONCE, 140000),
    ("postmaster", _ONCE, 140000),
    *_PLACE,
    *_CATALOG,
)
_TRACE: Final[_Steps] = (
    *_ON_HOST,
    ("count_databases", "every 10 seconds ($1: oids of databases)", 140000),
    ("count_relations", "every 10 seconds ($1: oids of relations)", 140000),
    ("count_writers", "every 10 seconds", 140000),
    ("count_io", "every 10 seconds", 160000),
    ("settle", "once, when each of these has run once", 140000),
)
_PEEK: Final[_Steps] = (
    *_ON_HOST,
    ("buffercache", _ONCE, 160000),
    (
        "extension_trust",
        "once, where pg_buffercache is there ($1: the extension, $2: what is used)",
        160000,
    ),
    ("SUMMARY", "twice before, to compare with the memory; only where pg_buffercache is there", 160000),
    *_COUNTERS,
)
_PROBED: Final = (
    "BufTableLookup, BufTableInsert, StrategyGetBuffer (every access and miss); heap_beginscan, heap_rescan, "
    "heap_endscan, GetAccessStrategy, FreeAccessStrategy, heap_vacuum_rel, GetBulkInsertState, "
    "FreeBulkInsertState, AbortCurrentTransaction, proc_exit, DropRelationBuffers, DropRelationsAllBuffers, "
    "DropDatabaseBuffers (as the server's version has them)"
)
_READ_PROBES: Final = (
    "times of reads",
    f"for {format_plain(TIMED_SECONDS)} s in every {format_plain(EVERY_SECONDS)} s of the observation; the "
    "probes end with this process",
    "bpf(BPF_MAP_CREATE), bpf(BPF_PROG_LOAD), bpf(BPF_LINK_CREATE, BPF_TRACE_UPROBE_MULTI), before Linux "
    "6.6 perf_event_open(uprobe), where WaitReadBuffers and mdstartreadv (up "
    "to version 16 mdread) begin and return, which count in a histogram how long sessions wait for reads",
)


def plan_sql(conninfo: str, output: Path) -> RecordPlan:
    """Return the statements that recording snapshots would send, in their order.

    Args:
        conninfo: as libpq understands it.
        output: the folder that would be written.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: the server is too old.
    """
    with connect(conninfo) as connection:
        version_num = connection.info.server_version
        with explained():
            server = read_server(connection)
            found = read_buffercache(connection)
            schema, refused = found.schema, []
            try:
                readable_schema(connection, found)
            except MissingAbility as error:
                refused = [f"it would be refused: {error.message}", *filter(None, [error.hint])]
        sample = sample_of(server, 0, None)
        memory = memory_statements(connection, server.shared_buffers_blocks)
        texts = {
            "MEMORY": ";\n".join(text.decode() for text, _ in memory),
            "SNAPSHOT": snapshot_query(version_num, schema or "public", sample.modulus, sample.offsets),
        }
        with explained():
            pid = search(*read_postmaster(connection)).pid
        steps = _statements(_SNAPSHOTS, connection, texts)
        if schema is None:
            note = "-- The extension pg_buffercache does not exist here yet: schema public is assumed.\n"
            steps = [
                msgspec.structs.replace(step, text=note + step.text) if step.what == "snapshot" else step
                for step in steps
            ]
        if pid is not None:
            steps += _system_calls(_host_memory(pid), *_host_counters(pid))
        return RecordPlan(
            source="sql", server=_target(connection), output=str(output), steps=steps, refused=refused
        )


def plan_peek(conninfo: str, output: Path, *, time_reads: bool = False) -> RecordPlan:
    """Return the statements and system calls of a recording from the server's memory.

    Args:
        conninfo: as libpq understands it.
        output: the folder that would be written.
        time_reads: time reads by probes too.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: the server is too old, is not on this host, or its memory may not be read.
    """
    with connect(conninfo) as connection:
        version_num = connection.info.server_version
        pid = _postmaster(connection)
        schema = read_buffercache(connection).schema or "public"
        texts = {"SUMMARY": summary_query(version_num, schema).decode()} if version_num >= 160000 else {}
        memory = (
            "memory",
            "at a random time in each interval",
            f"open(/proc/{pid}/mem), pread the buffer descriptors, 64 bytes a buffer",
        )
        steps = _statements(_PEEK, connection, texts) + _system_calls(
            _symbols(pid), _host_memory(pid), *_timed_reads(pid), *_host_counters(pid), memory
        )
        steps += _system_calls(*([_READ_PROBES] if time_reads else []))
        return RecordPlan(source="peek", server=_target(connection), output=str(output), steps=steps)


def plan_trace(conninfo: str, output: Path) -> RecordPlan:
    """Return the statements and system calls of a trace.

    Args:
        conninfo: as libpq understands it.
        output: the folder that would be written.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: the server is too old, is not on this host, or its memory may not be read.
    """
    with connect(conninfo) as connection:
        pid = _postmaster(connection)
        target = _target(connection)
        steps = _statements(_TRACE, connection, {})
    calls = _system_calls(
        _symbols(pid),
        _host_memory(pid),
        *_timed_reads(pid),
        (
            "disk latency",
            f"{_ONCE}, for a second at most",
            f"open(O_RDONLY | O_DIRECT) and pread of {DEPTH_READS}",
        ),
        (
            "copies",
            f"every {COPY_SECONDS:g} seconds, less often after a minute, for less than a millisecond",
            f"{COPIES} preads of blocks of /proc/{pid}/exe, which is in the page cache",
        ),
        *_host_counters(pid),
        ("memory", "before and after the observation", f"open(/proc/{pid}/mem), read the buffer descriptors"),
        ("buffer", _ONCE, f"bpf(BPF_MAP_CREATE, BPF_MAP_TYPE_RINGBUF), {RING_BYTES >> 20} MB"),
        ("programs", _ONCE, "bpf(BPF_PROG_LOAD, BPF_PROG_TYPE_KPROBE), one for each probe"),
        (
            "probes",
            "for the time of the observation; they end with this process",
            "bpf(BPF_LINK_CREATE, BPF_TRACE_UPROBE_MULTI), before Linux 6.6 perf_event_open(uprobe), in "
            + _PROBED,
        ),
        _READ_PROBES,
    )
    steps += calls
    return RecordPlan(source="trace", server=target, output=str(output), steps=steps)


def _statements(steps: _Steps, connection: Connection, texts: dict[str, str]) -> list[PlanStep]:
    """Return the steps that apply to the version; `texts` are those of the other names in capitals."""
    version_num = connection.info.server_version
    known = texts | {
        "STARTUP": f"-- startup packet: options={startup_options(session_settings(inspection=True))}",
        "FIRST": first_statement().as_string(connection),
        "FRESH_STATISTICS": setting_statement(**FRESH_STATISTICS).as_string(connection),
    }
    return [
        PlanStep(
            what=query.lower(),
            when=when,
            text=numbered((known[query] if query in known else load(query, version_num)).rstrip()),
        )
        for query, when, oldest in steps
        if version_num >= oldest
    ]


def _system_calls(*calls: tuple[str, str, str]) -> list[PlanStep]:
    """Return the steps for calls: what, when, and the call in words."""
    return [PlanStep(what=what, when=when, text=f"-- system call: {text}") for what, when, text in calls]


def _symbols(pid: int) -> tuple[str, str, str]:
    return "executable", _ONCE, f"open(/proc/{pid}/exe), read its symbols"


def _host_memory(pid: int) -> tuple[str, str, str]:
    return (
        "host memory",
        _ONCE,
        f"open(/proc/{pid}/status), cgroup, mountinfo, environ and limits, its children, /proc/meminfo, the "
        "limits and memory.stat of the memory cgroups above it, and the beginning of its postgresql.conf; "
        "the same of other servers of this host, and their postmaster.pid",
    )


def _timed_reads(pid: int) -> list[tuple[str, str, str]]:
    return [
        (
            "cold reads",
            f"{_ONCE}, for a quarter of a second at most",
            f"pread of up to {COLD_READS} blocks of files of relations that are not in the page cache, after "
            "each posix_fadvise(POSIX_FADV_DONTNEED) on it, which takes it out again: what a read from disk "
            "takes of a processor",
        ),
        (
            "copies",
            f"{_ONCE}, for some milliseconds",
            f"pread of /proc/{pid}/exe, which measures what a copy from the page cache takes",
        ),
        (
            "pace of the processors",
            f"every {ROUND_SECONDS:g} seconds, less often after half a minute, for a tenth of a millisecond",
            f"sched_setaffinity of this thread to one processor after the other, and {ROUND_READS} preads of "
            f"blocks of /proc/{pid}/exe there",
        ),
    ]


def _host_counters(pid: int) -> list[tuple[str, str, str]]:
    both = "before and after the observation"
    return [
        (
            "cached data",
            both,
            "open and cachestat (before Linux 6.5 mincore) of each file of a relation; mincore of those of "
            "the database that are cached in part",
        ),
        (
            "disk reads",
            both,
            f"open(/proc/{pid}/io), its children; io.stat of the server's cgroup; /proc/vmstat or the memory "
            f"cgroup's memory.stat; /proc/{pid}/stat, its children, /proc/stat",
        ),
    ]


def _postmaster(connection: Connection) -> int:
    with explained():
        return local_postmaster(connection).pid


def _target(connection: Connection) -> str:
    return f"{connection.info.dbname} at {connection.info.host or 'the local socket'}"
