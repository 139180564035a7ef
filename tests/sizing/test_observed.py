"""What models take of evidence: each table read once, counters, facts about the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgsweep.evidence.schema import TABLES
from pgsweep.evidence.store import Evidence, EvidenceMeta
from pgsweep.sizing.observed import Counters, Observation, Server
from pgsweep.sizing.predict import predict
from tests.fix_what_if import SIZES_BYTES, Load

ANSWERS = Path(__file__).parents[1] / "answers" / "evidence"


class Counted:
    """Empty evidence that counts how often each table is read."""

    def __init__(self) -> None:
        self.meta = EvidenceMeta(source="sql", server_version_num=150004, shared_buffers_blocks=1024)
        self.warnings = ["as recorded"]
        self.reads: Counter[str] = Counter()

    def table(self, name: str, columns: Sequence[str] | None = None) -> dict[str, Any]:
        self.reads[name] += 1
        return {column: np.zeros(0) for column in (TABLES[name] if columns is None else columns)}


def test_a_table_is_read_once_unless_it_is_too_large_to_be_kept() -> None:
    evidence = Counted()
    observation = Observation(evidence)
    for _ in range(3):
        assert observation.relation_names == []
        assert observation.counters.rate("database", "shop", "blks_read") is None
        assert list(observation.table("relations", ["db", "oid"])) == ["db", "oid"]
        observation.table("snapshots")
    assert evidence.reads == {"relations": 1, "counters": 1, "snapshots": 3}
    assert observation.warnings == ["as recorded"]
    assert observation.server.extensions_are_reads, "15 counts a new block as a read"


def test_a_folder_is_opened_once_for_a_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Load().write_snapshots(tmp_path / "x.evidence")
    opened, open_folder = [], Evidence.open

    def counted(folder: Path) -> Evidence:
        opened.append(folder)
        return open_folder(folder)

    monkeypatch.setattr(Evidence, "open", counted)
    predict(path, sizes_bytes=SIZES_BYTES, memory_bytes=64 << 20)
    assert opened == [path]


@pytest.mark.parametrize("name", ["load-sql", "sampled-blocks"])
def test_of_many_rows_those_of_a_sample_of_the_blocks_are_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 snapshots of 4 GB have 42 million rows, which took 5 GB of memory."""
    evidence = Evidence.open(ANSWERS / name)
    every = Observation(evidence)
    rows = evidence.rows("snapshots")
    monkeypatch.setattr("pgsweep.sizing.observed._MOST_ROWS", rows // 2)
    some = Observation(evidence)
    rate = some.server.sampling_rate
    assert rate == pytest.approx(every.server.sampling_rate / 2, abs=0.001)
    columns = ["snapshot", "rel", "block"]
    kept = np.stack(list(some.table("snapshots", columns).values()), axis=1).tolist()
    assert len(kept) == pytest.approx(rows / 2, rel=0.1)
    # Of a block that is in the sample no snapshot is missing.
    blocks = {(rel, block) for _, rel, block in kept}
    whole = np.stack(list(every.table("snapshots", columns).values()), axis=1).tolist()
    assert kept == [row for row in whole if (row[1], row[2]) in blocks]


def test_a_sample_of_the_blocks_gives_the_same_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Load().write_snapshots(tmp_path / "x.evidence")
    whole = predict(path, sizes_bytes=SIZES_BYTES)
    monkeypatch.setattr("pgsweep.sizing.observed._MOST_ROWS", Evidence.open(path).rows("snapshots") // 2)
    part = predict(path, sizes_bytes=SIZES_BYTES)
    for every, some in zip(whole.points, part.points, strict=True):
        assert every.low - 0.01 < some.miss_ratio < every.high + 0.01


def test_counters_by_scope_and_name() -> None:
    rows = [
        ("pool", "", "next_victim", 0.0, 7.0),
        ("host", "", "disk_read_bytes", 1.0, 100.0),
        ("database", "shop", "blks_read", 0.5, 5.0),
        ("database", "other", "blks_read", 4.5, 2.0),
        ("database", "shop", "blks_read", 4.5, 3.0),
        ("host", "", "disk_read_bytes", 3.0, 500.0),
    ]
    names = ("scope", "object", "name", "seconds", "value")
    table = {name: np.array([row[index] for row in rows]) for index, name in enumerate(names)}
    counters = Counters(table, Server.of(EvidenceMeta(source="sql", database="shop")))
    assert counters.first("pool", "next_victim") == 7.0
    assert counters.first("pool", "complete_passes") is None
    assert counters.grown("host", "disk_read_bytes") == (400.0, 2.0)
    assert counters.grown("pool", "next_victim") is None, "it was seen once"
    assert counters.objects("database", "blks_read") == {"shop", "other"}
    assert counters.series("database", "other", "blks_read").tolist() == [0.0, 2.0], "it began at 0"
    assert counters.rate("database", "shop", "blks_read") == pytest.approx(3 / 4), "it was reset meanwhile"
