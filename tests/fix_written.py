"""Evidence written by hand: a trace of one table, and rows of accesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pgsweep.evidence.store import TABLES, EvidenceMeta, EvidenceWriter
from tests.fix_pool import kinds_of

MIB = 1024**2
PAGES = 6000
OTHER_PAGES = 500
DATABASE_OID = 16400


def write_trace(
    path: Path,
    *,
    accesses: int = 120_000,
    source: str = "trace",
    version_num: int = 180006,
    scanned: bool = False,
) -> Path:
    """Write skewed reads of one table, with another database's, repeats and new pages among them.

    Args:
        scanned: every fifth access is one of scans of the whole table, in turn.
    """
    random = np.random.default_rng(3)
    ranks = np.minimum(random.zipf(1.15, accesses), PAGES) - 1
    block = random.permutation(PAGES)[ranks]
    mine = random.random(accesses) < 0.9
    block = np.where(mine, block, random.integers(0, OTHER_PAGES, accesses))
    new = random.random(accesses) < 0.004
    new &= mine
    block = np.where(new, PAGES + np.cumsum(new), block)
    flags = np.full(accesses, 4)
    # A backend's immediate second access to a page that it still pins.
    repeat = np.flatnonzero(random.random(max(accesses - 1, 0)) < 0.05) + 1
    repeat = repeat[~new[repeat]]
    for at in repeat:
        block[at], mine[at] = block[at - 1], mine[at - 1]
    flags[repeat] |= 2
    scan = np.zeros(accesses, dtype=np.uint32)
    if scanned:
        inside = np.flatnonzero((np.arange(accesses) % 5 == 0) & ~new & ((flags & 2) == 0))
        block[inside], mine[inside] = np.arange(len(inside)) % PAGES, True
        scan[inside], flags[inside] = 1 + np.arange(len(inside)) // PAGES, 5
    kind = kinds_of(np.where(mine, block, -1 - block), 1024, version=version_num // 10000, new=new)
    meta = EvidenceMeta(
        source=source,
        seconds=10.0,
        server_version_num=version_num,
        server_version=str(version_num // 10000),
        shared_buffers_blocks=1024,
        database="shop",
        database_oid=DATABASE_OID,
        settings={"max_connections": "100"},
    )
    one = np.ones(accesses, dtype=np.uint32)
    with EvidenceWriter(path, meta) as writer:
        writer.append(
            "accesses",
            {
                "time_ns": (np.arange(accesses) * (10_000_000_000 // max(accesses, 1))).astype(np.uint64),
                "pid": one,
                "spc": one * 1663,
                "db": np.where(mine, DATABASE_OID, 5).astype(np.uint32),
                "rel": one * 20000,
                "fork": np.zeros(accesses, dtype=np.uint8),
                "block": block.astype(np.uint32),
                "kind": kind.astype(np.uint8),
                "strategy": (scan > 0).astype(np.uint8),
                "flags": flags.astype(np.uint8),
                "scan": scan,
            },
        )
        writer.append(
            "relations",
            {
                "db": [DATABASE_OID],
                "database": ["shop"],
                "schema": ["public"],
                "name": ["orders"],
                "kind": ["r"],
                "oid": [20000],
                "spc": [1663],
                "rel": [20000],
                "table_oid": [20000],
                "blocks_begin": [PAGES],
                "blocks_end": [PAGES + int(new.sum())],
                "fsm_blocks": [0],
                "vm_blocks": [0],
                "tuples_per_block": [0.0],
            },
        )
    return path


META = EvidenceMeta(source="trace", pgsweep_version="0.1.0", server_version_num=180006, database="app")


def accesses(count: int, *, begin: int = 0) -> dict[str, Any]:
    """Return rows that do not compress well, so that parts have a size to speak of."""
    rng = np.random.default_rng(begin)
    columns: dict[str, Any] = {name: np.zeros(count, dtype=kind) for name, kind in TABLES["accesses"].items()}
    columns["time_ns"] = np.arange(begin, begin + count, dtype=np.uint64) * np.uint64(1000)
    columns["block"] = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    columns["rel"] = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    return columns
