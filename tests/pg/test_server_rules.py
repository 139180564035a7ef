"""The rules that follow from evidence, and evidence of servers whose rules are not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg
import pytest

from pgsweep._native import BULKREAD, VACUUM
from pgsweep.advice.ask import advise
from pgsweep.errors import EvidenceError, UsageError
from pgsweep.evidence.schema import EvidenceMeta
from pgsweep.evidence.writer import EvidenceWriter
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.predict import predict
from pgsweep.sizing.rules import check_usage_counts, rules_of
from pgsweep.sizing.verify import verify
from tests.fix_pool import record, zipf_pages

META = EvidenceMeta(
    source="sql",
    server_version_num=180000,
    shared_buffers_blocks=1000,
    database="bench",
    database_oid=5,
    complete=True,
)

STOCK_BLOCKS = 16384


@pytest.mark.parametrize(
    ("version_num", "settings", "strategy", "buffers"),
    [
        # 256 kB before 18; then the reads in flight on top, within a backend's share of the pins.
        (170004, {"effective_io_concurrency": "100"}, BULKREAD, 32),
        (180000, {"autovacuum_worker_slots": "16"}, BULKREAD, 94),
        (180000, {"max_connections": "1000"}, BULKREAD, 32),
        (180000, {"max_connections": "20", "autovacuum_max_workers": "1"}, BULKREAD, 207),
        (180000, {"effective_io_concurrency": "1"}, BULKREAD, 48),
        (180000, {"effective_io_concurrency": "1", "io_combine_limit": "32"}, BULKREAD, 64),
        # No more is combined than the other setting allows, whatever is set.
        (180000, {"effective_io_concurrency": "1", "io_combine_limit": "64"}, BULKREAD, 96),
        (
            180000,
            {"effective_io_concurrency": "1", "io_combine_limit": "64", "io_max_combine_limit": "32"},
            BULKREAD,
            64,
        ),
        (180000, {"effective_io_concurrency": "nonsense", "max_connections": ""}, BULKREAD, 101),
        # The setting came with 16, and its default rose from 256 kB to 2 MB with 17.
        (150000, {"vacuum_buffer_usage_limit": "1024"}, VACUUM, 32),
        (160000, {}, VACUUM, 32),
        (160000, {"vacuum_buffer_usage_limit": "1024"}, VACUUM, 128),
        (180000, {}, VACUUM, 256),
        (180000, {"vacuum_buffer_usage_limit": "-1"}, VACUUM, 256),
    ],
)
def test_rules_are_those_of_the_recorded_server(
    version_num: int, settings: dict[str, str], strategy: int, buffers: int
) -> None:
    of = msgspec.structs.replace(META, server_version_num=version_num, settings=settings)
    rules = rules_of(of)
    assert rules.version == version_num // 10000
    assert rules.ring_buffers(strategy, STOCK_BLOCKS) == buffers


def of(**changes: Any) -> EvidenceMeta:
    return msgspec.structs.replace(META, **changes)


def test_rules_that_no_server_has_are_refused() -> None:
    with pytest.raises(EvidenceError, match="not those of a server") as caught:
        rules_of(of(settings={"max_connections": "9" * 30}))
    assert caught.value.hint
    with pytest.raises(EvidenceError, match="does not name the version"):
        rules_of(of(server_version_num=0))
    for major in (11, 21):
        with pytest.raises(EvidenceError, match=f"PostgreSQL {major} are not known") as caught:
            rules_of(of(server_version_num=major * 10000))
        assert caught.value.cause and caught.value.hint


def test_usage_counts_that_the_policy_excludes_are_refused() -> None:
    check_usage_counts(META, np.array([0, 5], np.uint8))
    with pytest.raises(EvidenceError, match="usage_count of 6, and PostgreSQL 18 counts to 5"):
        check_usage_counts(META, np.array([0, 6], np.uint8))


def test_an_unsettled_version_must_show_the_rules_of_the_one_before() -> None:
    new = of(server_version_num=200000)
    check_usage_counts(new, np.array([0, 5], np.uint8))
    for counts in ([], [0, 1]):
        with pytest.raises(EvidenceError, match="not settled"):
            check_usage_counts(new, np.array(counts, np.uint8))


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, np.ndarray]]:
    accesses = zipf_pages(4000, 0.9, 400_000, 1)
    seen = record(accesses, 100_000, pages=4000, buffers=1000, snapshots=12)
    times = np.sort(np.unique(seen.counters["seconds"]))[1:-1].astype(np.float64)
    return {
        "snapshots": seen.snapshots,
        "snapshot_times": {"snapshot": np.arange(len(times)), "seconds": times},
        "counters": seen.counters,
        "relations": seen.relations,
    }


def written(path: Path, tables: dict[str, dict[str, np.ndarray]], meta: EvidenceMeta) -> Path:
    from pgsweep.evidence.schema import TABLES

    with EvidenceWriter(path, meta) as writer:
        for name, columns in tables.items():
            rows = len(next(iter(columns.values())))
            whole = {
                column: columns.get(column, np.full(rows, "" if kind == "str" else 0))
                for column, kind in TABLES[name].items()
            }
            writer.append(
                name,
                {
                    column: values.astype(object if TABLES[name][column] == "str" else TABLES[name][column])
                    for column, values in whole.items()
                },
            )
        writer.close(meta)
    return path


def test_evidence_of_an_unsettled_version_says_whose_rules_are_taken(
    tables: dict[str, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    known = predict(written(tmp_path / "18.evidence", tables, META))
    new = predict(written(tmp_path / "20.evidence", tables, of(server_version_num=200000)))
    assert new.points == known.points and new.points
    assert any("follow those of 19" in reason.text for reason in new.verdict.reasons)
    assert not any("follow those of" in reason.text for reason in known.verdict.reasons)
    with pytest.raises(EvidenceError, match="PostgreSQL 21 are not known"):
        predict(written(tmp_path / "21.evidence", tables, of(server_version_num=210000)))


def test_evidence_with_a_usage_count_above_the_cap_is_refused(
    tables: dict[str, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    counts = np.where(tables["snapshots"]["usage_count"] == 5, 7, tables["snapshots"]["usage_count"])
    changed = {**tables, "snapshots": {**tables["snapshots"], "usage_count": counts}}
    with pytest.raises(EvidenceError, match="usage_count of 7") as caught:
        predict(written(tmp_path / "seven.evidence", changed, META))
    assert caught.value.cause and caught.value.hint


def test_verify_refuses_another_version_and_another_block_size(
    tables: dict[str, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    before = written(tmp_path / "before.evidence", tables, META)
    for name, changes, words in (
        ("version", {"server_version_num": 170000, "server_version": "17.1"}, "17.1"),
        ("blocks", {"block_size_bytes": 16384}, "blocks of 8192 bytes, the other of 16384"),
    ):
        after = written(tmp_path / f"{name}.evidence", tables, of(**changes))
        with pytest.raises(UsageError) as caught:
            verify(before, after)
        assert caught.value.cause is not None and words in caught.value.cause


def test_blocks_of_another_size_are_refused(tables: dict[str, dict[str, np.ndarray]], tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="blocks of 16384 bytes") as caught:
        predict(written(tmp_path / "16k.evidence", tables, of(block_size_bytes=16384)))
    assert caught.value.cause and caught.value.hint


def test_advise_refuses_evidence_of_another_version_or_block_size(server: Cluster, tmp_path: Path) -> None:
    major = server.version_num // 10000
    for name, changes, words in (
        ("version", {"server_version_num": (major - 1) * 10000}, "this one is"),
        ("blocks", {"block_size_bytes": 16384}, "blocks of 16384 bytes, this one of 8192"),
    ):
        meta = of(**{"server_version_num": server.version_num, **changes})
        mine = written(tmp_path / f"{name}.evidence", {}, meta)
        with pytest.raises(UsageError, match="was recorded on another server") as caught:
            advise(mine, conninfo=server.conninfo())
        assert caught.value.cause is not None and words in caught.value.cause


def test_advise_says_whether_a_server_is_another_or_was_changed(server: Cluster, tmp_path: Path) -> None:
    with psycopg.connect(server.conninfo()) as connection:
        row = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
    assert row is not None
    for identifier, words in ((str(row[0]), "it was changed since"), ("", "it is another server, or it was")):
        meta = of(
            server_version_num=server.version_num, shared_buffers_blocks=77, system_identifier=identifier
        )
        mine = written(tmp_path / f"{identifier}.evidence", {}, meta)
        with pytest.raises(UsageError, match="was recorded with 616kB") as caught:
            advise(mine, conninfo=server.conninfo())
        assert caught.value.cause is not None and caught.value.cause.startswith(words)
