"""`predict` on evidence of real servers: right kind, right refusals, whatever the version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pgsweep.errors import EvidenceError, UsageError
from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter
from pgsweep.sizing.predict import predict
from pgsweep.sizing.snapshots.totals import read_totals


def write(path: Path, meta: EvidenceMeta, tables: dict[str, dict[str, np.ndarray]]) -> Path:
    with EvidenceWriter(path, meta) as writer:
        for name, columns in tables.items():
            writer.append(name, columns)
        writer.close(meta)
    return path


def meta(source: str, blocks: int = 100) -> EvidenceMeta:
    return EvidenceMeta(
        source=source,
        server_version_num=180000,
        shared_buffers_blocks=blocks,
        database="bench",
        database_oid=5,
        complete=True,
    )


def test_sizes_below_the_least_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`64 kB` is too small for shared_buffers") as caught:
        predict(tmp_path / "none.evidence", sizes_bytes=[64 * 1024])
    assert caught.value.exit_code == 2


def test_no_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no size"):
        predict(tmp_path / "none.evidence", sizes_bytes=[])


def test_a_trace_with_no_access_of_the_database_is_refused(tmp_path: Path) -> None:
    one = np.ones(1)
    path = write(
        tmp_path / "other.evidence",
        meta("trace"),
        {
            "accesses": {
                "time_ns": one.astype(np.uint64),
                "pid": one.astype(np.uint32),
                "spc": one.astype(np.uint32),
                "db": np.array([7], dtype=np.uint32),
                "rel": one.astype(np.uint32),
                "fork": np.zeros(1, dtype=np.uint8),
                "block": one.astype(np.uint32),
                "kind": np.zeros(1, dtype=np.uint8),
                "strategy": np.zeros(1, dtype=np.uint8),
                "flags": np.zeros(1, dtype=np.uint8),
                "scan": np.zeros(1, dtype=np.uint32),
            }
        },
    )
    with pytest.raises(EvidenceError, match="nothing happened in the database `bench`") as caught:
        predict(path)
    assert caught.value.hint is not None and "record again" in caught.value.hint


def test_counters_not_listed_keep_their_value() -> None:
    """A sample lists what changed; a counter that is missing in the first began at 0."""
    rows = [
        (0.0, "database", "bench", "blks_hit", 100.0),
        (0.0, "database", "bench", "blks_read", 50.0),
        (1.0, "database", "bench", "blks_hit", 150.0),
        (1.0, "relation", "16384", "blks_read", 30.0),
        (2.0, "database", "bench", "blks_hit", 160.0),
        (2.0, "database", "bench", "blks_read", 80.0),
        (2.0, "relation", "16384", "blks_hit", 10.0),
    ]
    seconds, scope, key, name, value = (np.array(c) for c in zip(*rows, strict=True))
    relations = {
        "oid": np.array([16384]),
        "name": np.array(["orders"]),
        "kind": np.array(["r"]),
        "blocks_begin": np.array([10]),
        "blocks_end": np.array([14]),
    }
    counters = {
        "seconds": seconds.astype(float),
        "scope": scope,
        "object": key,
        "name": name,
        "value": value.astype(float),
    }
    totals = read_totals(counters, relations, "bench")
    assert (totals.hits, totals.misses, totals.seconds) == (60.0, 30.0, 2.0)
    assert totals.relation_misses.tolist() == [15.0]
    assert totals.relation_growth_blocks.tolist() == [2.0]
    assert totals.first_half_miss_ratio == 0.0
    assert totals.second_half_miss_ratio == 0.75
