"""What a recording would do to the server, without recording: `pgsweep record --dry-run`.

The session is opened, because the statements depend on the server's version, and for a trace the server's
process is looked for. The texts are those of pg/queries, the very files that a recording sends; the
system calls are those of probe/src (tracer.rs, bpf.rs, pool.rs).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psycopg

from pgsweep.evidence.trace import RING_BYTES
from pgsweep.host.postmaster import find_postmaster
from pgsweep.pg.connect import connect, explained
from pgsweep.pg.queries import load
from pgsweep.records import PlanStep, RecordPlan

_Steps = tuple[tuple[str, str, int], ...]

_ONCE: Final = "once, before the observation"
_SNAPSHOTS: Final[_Steps] = (
    # Query, when it is sent, the oldest version it is sent to.
    ("buffercache", _ONCE, 140000),
    ("server", _ONCE, 140000),
    ("settings", _ONCE, 140000),
    ("databases", _ONCE, 140000),
    ("relations", "once before and once after the observation", 140000),
    ("sizes", "after each of them, for up to 1000 relations at a time", 140000),
    ("snapshot", "at random times, one in each interval", 140000),
    ("count_databases", "with every snapshot", 140000),
    ("count_relations", "with every snapshot", 140000),
    ("count_writers", "with every snapshot", 140000),
    ("count_io", "with every snapshot", 160000),
)


_TRACE: Final[_Steps] = (
    ("server", _ONCE, 140000),
    ("settings", _ONCE, 140000),
    ("postmaster", _ONCE, 140000),
    ("databases", _ONCE, 140000),
    ("relations", "once before and once after the observation", 140000),
    ("sizes", "after each of them, for up to 1000 relations at a time", 140000),
    ("count_databases", "every 10 seconds", 140000),
    ("count_relations", "every 10 seconds", 140000),
    ("count_writers", "every 10 seconds", 140000),
    ("count_io", "every 10 seconds", 160000),
)
_PROBED: Final = (
    "BufTableLookup, BufTableInsert, StrategyGetBuffer (every access and miss); heap_beginscan, heap_rescan, "
    "heap_endscan, GetAccessStrategy, FreeAccessStrategy, heap_vacuum_rel, GetBulkInsertState, "
    "FreeBulkInsertState, AbortCurrentTransaction, proc_exit, DropRelationBuffers, DropRelationsAllBuffers, "
    "DropDatabaseBuffers (as the server's version has them)"
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
        steps = _statements(_SNAPSHOTS, connection.info.server_version)
        return RecordPlan(source="sql", server=_target(connection), output=str(output), steps=steps)


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
        version_num = connection.info.server_version
        with explained():
            row = connection.execute(load("postmaster", version_num)).fetchone()
        assert row is not None
        pid = find_postmaster(*row)
        target = _target(connection)
    calls = (
        ("executable", _ONCE, f"open(/proc/{pid}/exe), read its symbols"),
        ("memory", "before and after the observation", f"open(/proc/{pid}/mem), read the buffer descriptors"),
        ("buffer", _ONCE, f"bpf(BPF_MAP_CREATE, BPF_MAP_TYPE_RINGBUF), {RING_BYTES >> 20} MB"),
        ("programs", _ONCE, "bpf(BPF_PROG_LOAD, BPF_PROG_TYPE_KPROBE), one for each probe"),
        (
            "probes",
            "for the time of the observation; they end with this process",
            "bpf(BPF_LINK_CREATE, BPF_TRACE_UPROBE_MULTI), before Linux 6.6 perf_event_open(uprobe), in "
            + _PROBED,
        ),
    )
    steps = [PlanStep(what=what, when=when, text=f"-- system call: {text}") for what, when, text in calls]
    steps = _statements(_TRACE, version_num) + steps
    return RecordPlan(source="trace", server=target, output=str(output), steps=steps)


def _statements(steps: _Steps, version_num: int) -> list[PlanStep]:
    return [
        PlanStep(what=query, when=when, text=load(query, version_num).rstrip())
        for query, when, oldest in steps
        if version_num >= oldest
    ]


def _target(connection: psycopg.Connection[Any]) -> str:
    return f"{connection.info.dbname} at {connection.info.host or 'the local socket'}"
