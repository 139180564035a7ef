"""The shape of evidence: one record of facts about the observation, and the columns of every table.

The reference for readers of the files is docs/concepts/evidence.md. Within one schema number fields,
columns and tables are only ever added, so that old evidence stays readable and old readers skip what they
do not know.
"""

from __future__ import annotations

import errno
from typing import Final

import msgspec

SCHEMA_NAME: Final = "pgsweep.evidence"
SCHEMA_NUMBER: Final = 1
SCHEMA: Final = f"{SCHEMA_NAME}/{SCHEMA_NUMBER}"

MOST_META_BYTES: Final = 1 << 20
"""Of meta.json, which has some kB."""

ANSWERS: Final = ".answers"
"""The file in the folder that keeps answers (evidence/kept.py), and what such a file's name ends in."""

STATISTICS_RESET: Final = "the server's statistics were reset during the recording"
"""A warning in meta.json; a prediction from snapshots is rough then."""

NEVER_FULL: Final = "shared_buffers is not full yet: nothing had to be evicted"
"""A warning in meta.json; a prediction says more of it."""

SERVER_ENDED: Final = "the server was stopped, restarted or crashed; the evidence ends there"
"""A warning in meta.json."""

TWICE: Final = "data_twice_end_bytes"
"""The fact of the host that says how much of the pool the page cache held too, at the end."""

DISK_TROUBLE: Final = {
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file may not grow further (limit of the process or the file system)",
    errno.EIO: "the device reported an input/output error",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENOTDIR: "a parent of the path is not a folder",
    errno.ENAMETOOLONG: "the name is too long",
}

NEW_PAGE: Final = 2
"""Of the column `kind` of accesses: a page was made, which the server counts as no hit and no miss."""

FLAG_SCAN: Final = 1
"""Bits of `flags` in the table `accesses` (probe/src/columns.rs): a sequential scan at its position,"""
FLAG_PINNED: Final = 2
"""the process pins the page already,"""
FLAG_STRATEGY_KNOWN: Final = 4
"""the strategy is known."""

PASSES_OF_PATHS: Final = (12.0, 1.0)
PASSES_OF_STATES: Final = (45.0, 15.0)
"""Clock passes below which a prediction is rough, and below which it is refused. The states of snapshots are
taken for independent, which takes many passes; paths are followed where the hand is known."""

_MARGIN: Final = 1.25
"""The time of a clock pass is estimated, while it is recorded and afterwards."""

EXTENSIONS_ARE_READS_BELOW: Final = 160000
"""Until 15 the server counts a new block as a read (bufmgr.c, ReadBuffer_common)."""

# Column types, as numpy names them; `str` is UTF-8 text.
TABLES: Final[dict[str, dict[str, str]]] = {
    "accesses": {
        "time_ns": "uint64",
        "pid": "uint32",
        "spc": "uint32",
        "db": "uint32",
        "rel": "uint32",
        "fork": "uint8",
        "block": "uint32",
        "kind": "uint8",
        "strategy": "uint8",
        "flags": "uint8",
        "scan": "uint32",
    },
    "scans": {
        "scan": "uint32",
        "pid": "uint32",
        "begin_ns": "uint64",
        "end_ns": "uint64",
        "spc": "uint32",
        "db": "uint32",
        "rel": "uint32",
        "strategy": "uint8",
        "allow_strategy": "bool",
        "parallel": "bool",
    },
    "drops": {
        "time_ns": "uint64",
        "row": "uint64",
        "pid": "uint32",
        "spc": "uint32",
        "db": "uint32",
        "rel": "uint32",
        "fork": "uint8",
        "first_block": "uint32",
    },
    "snapshots": {
        "snapshot": "int32",
        "frame": "int32",
        "spc": "uint32",
        "db": "uint32",
        "rel": "uint32",
        "fork": "uint8",
        "block": "uint32",
        "usage_count": "uint8",
        "dirty": "bool",
        "pinned": "bool",
    },
    "snapshot_times": {
        "snapshot": "int32",
        "begin_seconds": "float64",
        "end_seconds": "float64",
        "used_frames": "int32",
    },
    "counters": {
        "sample": "int32",
        "seconds": "float64",
        "scope": "str",
        "object": "str",
        "name": "str",
        "value": "float64",
    },
    "page_cache": {
        "sample": "int32",
        "seconds": "float64",
        "spc": "uint32",
        "db": "uint32",
        "rel": "uint32",
        "fork": "uint8",
        "first_block": "uint32",
        "blocks": "uint32",
        "pages": "uint8",
    },
    "read_times": {
        "stretch": "int32",
        "begin_seconds": "float64",
        "end_seconds": "float64",
        "from_ns": "uint64",
        "below_ns": "uint64",
        "reads": "uint64",
        "nanoseconds": "uint64",
    },
    "relations": {
        "db": "uint32",
        "database": "str",
        "schema": "str",
        "name": "str",
        "kind": "str",
        "oid": "uint32",
        "spc": "uint32",
        "rel": "uint32",
        "table_oid": "uint32",
        "blocks_begin": "int64",
        "blocks_end": "int64",
        "fsm_blocks": "int64",
        "vm_blocks": "int64",
        "tuples_per_block": "float64",
    },
}

ADDED_LATER: Final[dict[str, frozenset[str]]] = {"relations": frozenset({"tuples_per_block"})}
"""Columns that older evidence lacks, by table: they are read as 0, which means not known."""


class EvidenceMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What `meta.json` says about an observation.

    Attributes:
        source: `sql`, `peek`, `trace` or `import`.
        started_at: wall clock at the beginning, ISO 8601 with zone; all other times count from here.
        seconds: length of the observation.
        accesses_per_second: page accesses of the database, as the server counts them, from a trace that lost
            none; null where that is not known, as of snapshots; 0 in older evidence.
        complete: the recorder closed the evidence itself; otherwise it was cut.
        ended_by: why the observation ended: `enough`, `time`, `limit`, `unpredictable`, `interrupt`,
            `server`, `disk`, ...
        server_version_num: as the server reports it (180006); 0 where no server was seen.
        system_identifier: of the cluster, as initdb made it; a physical standby has its primary's. Empty
            where the role might not read it.
        database_oid: whose accesses and counters the observation is about.
        settings: server settings that decide what a buffer pool does, as `SHOW` gives them.
        host: facts about the machine, where it could be seen.
        sampling: rates (0 to 1) by table, and the parameters of the draw; empty where everything was taken.
        overhead: shares of time or counts that the recording itself cost, by name.
        lost_events: events that the recorder knows it lost.
        losses: the same by cause.
        parts: how many parts each table had when the recorder closed the evidence; empty where it did not,
            and in older evidence.
        warnings: everything that a reader of the evidence must know, in words.
    """

    schema: str = SCHEMA
    pgsweep_version: str = ""
    source: str
    started_at: str = ""
    seconds: float = 0.0
    accesses_per_second: float | None = None
    complete: bool = False
    ended_by: str = ""
    server_version_num: int = 0
    server_version: str = ""
    system_identifier: str = ""
    block_size_bytes: int = 8192
    shared_buffers_blocks: int = 0
    settings: dict[str, str] = {}
    database: str = ""
    database_oid: int = 0
    host: dict[str, str] = {}
    sampling: dict[str, float] = {}
    overhead: dict[str, float] = {}
    lost_events: int = 0
    losses: dict[str, int] = {}
    parts: dict[str, int] = {}
    warnings: list[str] = []


_OF_SNAPSHOTS: Final = ("snapshots", "snapshot_times", "counters")
_NEEDED: Final = {"trace": ("accesses",), "sql": _OF_SNAPSHOTS, "peek": _OF_SNAPSHOTS}


def needed_tables(source: str) -> tuple[str, ...]:
    """Return the tables that must have rows for a prediction from a source, the observations first.

    A trace has snapshots too: the pool at both ends, which says nothing without the accesses.
    """
    return _NEEDED.get(source, ())


def is_identifier(text: str) -> bool:
    """Return whether a text can be a system identifier: a number of 64 bits (pg_control.h)."""
    return text.isascii() and text.isdecimal() and len(text) <= 20


def other_cluster(one: str, other: str) -> bool:
    """Return whether two system identifiers are those of different clusters; not where one is not known."""
    return bool(one and other and one != other)


def wanted_passes(*, hand_seen: bool) -> float:
    """Return the clock passes that a recording should cover, so that no prediction calls it short."""
    return _MARGIN * (PASSES_OF_PATHS if hand_seen else PASSES_OF_STATES)[0]
