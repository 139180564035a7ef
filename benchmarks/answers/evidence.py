"""Evidence of any size: a trace and snapshots of one simulated load, on a host with memory to share.

Three relations are read by Zipf's law, and in a trace the last one grows. The pool is simulated by the
server's rules, so that hits, misses and snapshots are what a recording would hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.synthetic import SyntheticRelation, SyntheticSpec, simulate
from pgsweep import _native
from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter
from pgsweep.units import BLOCK_BYTES

_SPACE, _DATABASE_OID, _DATABASE, _FIRST_OID = 1663, 5, "shop", 20_000
_SHARES: Final = (0.55, 0.33, 0.12)
"""Of the pages and of the accesses of three relations."""

_EXPONENT: Final = 0.8
_GROWS_EVERY: Final = 200
"""One access in so many makes a page of the last relation."""

_BACKENDS: Final = 8


@dataclass(frozen=True, kw_only=True)
class TraceSize:
    """How large a trace is.

    Attributes:
        blocks: of the database.
        memory_bytes: of the host.
    """

    accesses: int
    blocks: int
    pool_blocks: int
    memory_bytes: int
    accesses_per_second: int = 40_000


def host(memory_bytes: int, pool_blocks: int) -> dict[str, str]:
    """Return what a recording on the server's host says of it, in round numbers."""
    other = memory_bytes // 8
    shared = pool_blocks * BLOCK_BYTES
    facts = {
        "memory_bytes": memory_bytes,
        "memory_other_bytes": other,
        "memory_shared_bytes": shared,
        "memory_page_cache_bytes": memory_bytes - other - shared - memory_bytes // 32,
        "memory_page_tables_bytes": memory_bytes // 1024,
        "memory_private_bytes": memory_bytes // 64,
        "server_processes": 12,
        "readahead_bytes": 128 << 10,
        "folio_order": 0,
        "huge_pages": "off",
        "copy_nanoseconds": 1000,
        "processors": 4,
        "cold_read_nanoseconds": 100_000,
        "disk_latency_by_depth": "1:0.000120000:0.000002000:400 2:0.000130000:0.000003000:400 "
        "4:0.000170000:0.000004000:600 8:0.000300000:0.000008000:800",
    }
    return {name: str(value) for name, value in facts.items()}


def write_trace(folder: Path, size: TraceSize) -> None:
    """Write a trace, the second half of a simulated load whose first half fills the pool."""
    random = np.random.default_rng(size.accesses)
    sizes = [max(round(size.blocks * share), 1) for share in _SHARES]
    first = np.concatenate([[0], np.cumsum(sizes)])
    count = 2 * size.accesses
    relation = np.searchsorted(np.cumsum(_SHARES), random.random(count) * sum(_SHARES))
    relation = np.minimum(relation, len(sizes) - 1)
    pages = np.zeros(count, dtype=np.uint32)
    for number, blocks in enumerate(sizes):
        own = np.flatnonzero(relation == number)
        edges = np.cumsum(np.arange(1, blocks + 1) ** -_EXPONENT)
        rank = np.minimum(np.searchsorted(edges, random.random(len(own)) * edges[-1]), blocks - 1)
        pages[own] = first[number] + random.permutation(blocks)[rank]
    made = np.arange(_GROWS_EVERY // 2, count, _GROWS_EVERY)
    pages[made] = first[-1] + np.arange(len(made))
    flags = np.zeros(count, dtype=np.uint8)
    flags[made] = _native.EXTENSION
    seen = _native.replay_outcomes(pages, size.pool_blocks, _native.Rules(18), flags=flags)
    _keep(
        folder,
        size,
        pages[size.accesses :],
        seen["outcomes"][size.accesses :],
        first,
        int(first[-1]) + len(made),
    )


def _keep(
    folder: Path,
    size: TraceSize,
    pages: NDArray[np.uint32],
    outcomes: NDArray[np.uint8],
    first: NDArray[np.int64],
    end: int,
) -> None:
    seconds = size.accesses / size.accesses_per_second
    meta = EvidenceMeta(
        source="trace",
        seconds=seconds,
        ended_by="time",
        server_version_num=180000,
        shared_buffers_blocks=size.pool_blocks,
        database=_DATABASE,
        database_oid=_DATABASE_OID,
        host=host(size.memory_bytes, size.pool_blocks),
    )
    count = len(pages)
    relation = np.minimum(np.searchsorted(first, pages, side="right") - 1, len(first) - 2)
    random = np.random.default_rng(1)
    with EvidenceWriter(folder, meta, overwrite=True) as writer:
        writer.append(
            "accesses",
            {
                "time_ns": (np.arange(count) * (1e9 / size.accesses_per_second)).astype(np.int64),
                "pid": random.integers(1, _BACKENDS + 1, count).astype(np.int32),
                "spc": np.full(count, _SPACE, np.uint32),
                "db": np.full(count, _DATABASE_OID, np.uint32),
                "rel": (_FIRST_OID + relation).astype(np.uint32),
                "fork": np.zeros(count, np.uint8),
                "block": (pages - first[relation]).astype(np.uint32),
                "kind": outcomes,
                "strategy": np.zeros(count, np.uint8),
                "flags": np.zeros(count, np.uint8),
                "scan": np.zeros(count, np.uint64),
            },
        )
        sizes = np.diff(first)
        ends = sizes.copy()
        ends[-1] = end - first[-2]
        begins = ends.copy()
        begins[-1] -= int(np.count_nonzero(outcomes == 2))
        writer.replace("relations", _relations(begins.tolist(), ends.tolist()))
        for sample in range(2):
            writer.append(
                "counters", _counters(sample, sample * seconds, int(np.count_nonzero(outcomes == 1)))
            )
        writer.close(meta)


def _relations(begins: list[int], ends: list[int]) -> dict[str, Any]:
    count = len(ends)
    oids = [_FIRST_OID + number for number in range(count)]
    return {
        "db": [_DATABASE_OID] * count,
        "database": [_DATABASE] * count,
        "schema": ["public"] * count,
        "name": [f"r{number}" for number in range(count)],
        "kind": ["r"] * count,
        "oid": oids,
        "spc": [_SPACE] * count,
        "rel": oids,
        "table_oid": oids,
        "blocks_begin": begins,
        "blocks_end": ends,
        "fsm_blocks": [0] * count,
        "vm_blocks": [0] * count,
        "tuples_per_block": [50.0] * count,
    }


def _counters(sample: int, seconds: float, misses: int) -> dict[str, Any]:
    """Return the counters after so many seconds: four sessions, half of whose time is work."""
    grown = {
        ("database", "xact_commit"): 1000 * seconds,
        ("database", "active_time"): 4000 * seconds,
        ("database", "session_time"): 5000 * seconds,
        ("database", "blk_read_time"): 0.05 * misses * sample,
        ("database", "blk_write_time"): 100 * seconds,
        ("host", "server_cpu_seconds"): seconds,
        ("host", "host_cpu_seconds"): 1.2 * seconds,
        ("host", "server_read_bytes"): float(misses * BLOCK_BYTES * sample),
    }
    return {
        "sample": [sample] * len(grown),
        "seconds": [seconds] * len(grown),
        "scope": [scope for scope, _ in grown],
        "object": [_DATABASE if scope == "database" else "" for scope, _ in grown],
        "name": [name for _, name in grown],
        "value": list(grown.values()),
    }


def write_snapshots(folder: Path, *, pool_blocks: int, memory_bytes: int) -> None:
    """Write `sql.evidence` and `peek.evidence` below a folder: 30 snapshots of a load of three relations."""
    relation = SyntheticRelation(
        pages=0, law="zipf", exponent=_EXPONENT, share=0.0, accesses=1.0, gap_seconds=0.0
    )
    spec = SyntheticSpec(
        seed=1,
        version=18,
        pool_blocks=pool_blocks,
        accesses_per_second=20_000,
        passes=30,
        snapshots=30,
        relations=tuple(
            msgspec.structs.replace(relation, pages=round(8 * pool_blocks * share), share=share)
            for share in _SHARES
        ),
    )
    simulate(spec, folder)
    for source in ("sql", "peek"):
        path = folder / f"{source}.evidence" / "meta.json"
        meta = msgspec.json.decode(path.read_bytes())
        meta["host"] = host(memory_bytes, pool_blocks)
        path.write_bytes(msgspec.json.encode(meta))
