"""`predict --what-if`: what is asked, and what comes out against the truth of the changed load, simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pgsweep.errors import UsageError
from pgsweep.evidence.store import Evidence
from pgsweep.records.prediction import PredictResult
from pgsweep.sizing.page_cache.memory_shares import SESSION_BYTES, MemoryFacts
from pgsweep.sizing.predict import predict
from pgsweep.sizing.what_if.grammar import Grows, Scan, SharedBuffers, parse
from pgsweep.sizing.what_if.relations import check_relations
from pgsweep.sizing.what_if.rewritten_trace import RewrittenTrace
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.prediction import VIEW
from tests.fix_cli import run
from tests.fix_results import MB
from tests.fix_what_if import PER_SECOND, POOL, SIZES, SIZES_BYTES, Load

LOAD = Load()


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("what_if")
    return {
        "trace": LOAD.write_trace(folder / "trace.evidence"),
        "sql": LOAD.write_snapshots(folder / "sql.evidence"),
    }


@cache
def truth_of(load: Load) -> list[float]:
    return [float(ratio) for ratio in load.truth()]


@pytest.mark.parametrize("kind", ["trace", "sql"])
@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        (["without orders"], LOAD.without("orders")),
        (["orders grows 2x"], LOAD.grown("orders", 2)),
        (["keep log warm"], replace(LOAD, kept="log")),
        (["scan orders every 1s"], replace(LOAD, scanned="orders", every=PER_SECOND)),
        (["without items", "log grows 3x"], LOAD.without("items").grown("log", 3)),
        # Twice the accesses of the others for each scan.
        (["connections 2x", "scan log every 1s"], replace(LOAD, scanned="log", every=2 * PER_SECOND)),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, list) else "",
)
def test_the_changed_load_misses_as_predicted(
    evidence: dict[str, Path], kind: str, asked: list[str], changed: Load
) -> None:
    found = predict(evidence[kind], sizes_bytes=SIZES_BYTES, what_if=asked)
    after = found.changed
    assert after is not None
    truth = dict(zip(SIZES_BYTES, truth_of(changed), strict=True))
    now = dict(zip(SIZES_BYTES, truth_of(LOAD), strict=True))
    assert len(after.points) >= 2
    for point in after.points:
        right = truth[point.shared_buffers_bytes]
        assert point.miss_ratio == pytest.approx(right, abs=0.012), (asked, kind, truth)
        assert point.low - 0.005 <= right <= point.high + 0.005, (asked, kind, truth)
        before = next(one for one in found.points if one.shared_buffers_bytes == point.shared_buffers_bytes)
        part = min(point.miss_ratio / before.miss_ratio, 1.0)
        if kind == "trace":
            # No more is known of a changed load than of the one that was recorded.
            assert point.high - point.miss_ratio >= (before.high - before.miss_ratio) * part - 1e-9
            assert point.miss_ratio - point.low >= (before.miss_ratio - before.low) * part - 1e-9
    # A test that would pass without the change says nothing of it.
    assert max(abs(truth[size] - now[size]) for size in SIZES_BYTES) > 0.005 or "connections 2x" in asked
    assert after.verdict.level == "rough"
    assert any("never observed" in reason.text for reason in after.verdict.reasons)
    assert [one.text for one in found.what_if] == asked
    assert all(one.kind == "assumed" and one.assumption for one in found.what_if)
    for point, right in zip(found.points, now.values(), strict=True):
        assert point.miss_ratio == pytest.approx(right, abs=0.012)


def test_a_pool_with_little_room_beside_what_is_kept_is_not_predicted(evidence: dict[str, Path]) -> None:
    for path in evidence.values():
        found = predict(path, sizes_bytes=SIZES_BYTES[:2], what_if=["keep log warm"])
        assert found.changed is not None
        assert found.changed.unknown_bytes == [SIZES_BYTES[0]]
        assert any("kept: not predicted" in reason.text for reason in found.changed.verdict.reasons)


def test_rows_that_are_inserted_take_their_part_of_the_pool(evidence: dict[str, Path]) -> None:
    """500 blocks a second stay for several clock passes; what is added hits, and makes others miss."""
    found = predict(evidence["trace"], sizes_bytes=SIZES_BYTES, what_if=["insert into log 25000 rows/s"])
    assert found.changed is not None
    assert found.changed.accesses_per_second == pytest.approx(PER_SECOND + 24_500, rel=0.01)
    for before, after in zip(found.points, found.changed.points, strict=True):
        misses = after.miss_ratio * found.changed.accesses_per_second
        # More than today, no more than all that was accessed before.
        assert before.miss_ratio * PER_SECOND < misses < PER_SECOND
    # Both sources agree on a load that neither has seen.
    other = predict(evidence["sql"], sizes_bytes=SIZES_BYTES, what_if=["insert into log 25000 rows/s"])
    assert other.changed is not None
    assert other.changed.accesses_per_second == pytest.approx(PER_SECOND + 24_500, rel=0.01)
    assert [point.miss_ratio for point in found.changed.points] == pytest.approx(
        [point.miss_ratio for point in other.changed.points], abs=0.01
    )


def test_more_sessions_make_more_accesses_to_the_same_pages(evidence: dict[str, Path]) -> None:
    for path in evidence.values():
        found = predict(path, sizes_bytes=SIZES_BYTES, what_if=["connections 3x"])
        assert found.changed is not None
        assert found.changed.accesses_per_second == pytest.approx(3 * PER_SECOND, rel=0.01)
        ratios = [point.miss_ratio for point in found.points]
        assert [point.miss_ratio for point in found.changed.points] == pytest.approx(ratios, abs=0.01)


def test_a_named_size_is_added_to_the_curve(evidence: dict[str, Path]) -> None:
    found = predict(evidence["trace"], sizes_bytes=[8 << 20], what_if=["shared_buffers 16MB"])
    assert [point.shared_buffers_bytes for point in found.points] == [8 << 20, 16 << 20]
    assert found.changed is None and found.what_if[0].text == "shared_buffers 16MB"


def test_memory_that_the_evidence_does_not_know_is_refused(evidence: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="does not say how the memory"):
        predict(evidence["trace"], sizes_bytes=[8 * MB], what_if=["huge_pages on"])
    with pytest.raises(UsageError, match="what huge pages change is not known"):
        predict(evidence["sql"], sizes_bytes=[8 * MB], memory_bytes=64 * MB, what_if=["huge_pages on"])


HOST = {
    "memory_bytes": str(76 * MB), "memory_other_bytes": str(40 * MB), "memory_shared_bytes": str(10 * MB),
    "memory_page_cache_bytes": str(26 * MB), "memory_page_tables_bytes": str(12 * MB),
    "server_processes": "28", "readahead_bytes": "131072", "folio_order": "0", "huge_pages": "off",
}  # fmt: skip
"""76 MB, of which 40 MB serve neither cache, a part of them page tables."""


@pytest.fixture(scope="module")
def with_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a trace of that host."""
    return LOAD.write_trace(tmp_path_factory.mktemp("host") / "x.evidence", 60_000, host=HOST)


@pytest.fixture(scope="module")
def seen_on_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give snapshots of that host."""
    return LOAD.write_snapshots(tmp_path_factory.mktemp("seen") / "x.evidence", host=HOST)


@pytest.fixture
def on_host(request: pytest.FixtureRequest, kind: str) -> Path:
    return Path(request.getfixturevalue("with_host" if kind == "trace" else "seen_on_host"))


@pytest.mark.parametrize("kind", ["trace", "sql"])
@pytest.mark.parametrize("asked", ["ram 192MB", "huge_pages on"])
def test_more_memory_means_a_larger_page_cache_and_the_same_misses(on_host: Path, asked: str) -> None:
    found = predict(on_host, sizes_bytes=[8 * MB], what_if=[asked])
    assert found.changed is not None and found.changed.memory is not None and found.memory is not None
    assert found.changed.points == found.points
    assert found.changed.verdict == found.verdict
    [before], [after] = found.memory.points, found.changed.memory.points
    if asked.startswith("ram"):
        assert after.page_cache_bytes - before.page_cache_bytes == 116 * MB
        assert after.disk_reads_per_second < before.disk_reads_per_second
    else:
        # All page tables but those that each process has anyway.
        assert after.page_cache_bytes - before.page_cache_bytes == 12 * MB - 28 * 150_000
        assert after.page_tables_bytes == 0


@pytest.mark.parametrize("kind", ["trace", "sql"])
def test_more_sessions_take_memory_from_the_page_cache(on_host: Path) -> None:
    found = predict(on_host, sizes_bytes=[8 * MB], what_if=["connections 1.2x"])
    assert found.changed is not None and found.changed.memory is not None and found.memory is not None
    [before], [after] = found.memory.points, found.changed.memory.points
    # Four more sessions of 5 MB and their page tables.
    assert before.page_cache_bytes - after.page_cache_bytes >= 20 * MB
    # The evidence has no times of its sessions.
    assert found.changed.memory.throughput is not None and not found.changed.memory.throughput.points
    assert "how long sessions wait" in found.changed.memory.throughput.reasons[0]
    assert after.disk_reads_per_second > before.disk_reads_per_second


def test_a_session_takes_what_the_processes_of_today_do() -> None:
    facts = replace(MemoryFacts.supposed(1 << 30, 16 * MB), processes=28)
    # 20 of the processes are sessions; ten more of them.
    assumed = facts.changed(huge_pages=None, sessions_factor=1.5)
    assert assumed.other_bytes - facts.other_bytes == 10 * SESSION_BYTES
    measured = replace(facts, private_bytes=28 * MB).changed(huge_pages=None, sessions_factor=1.5)
    assert measured.other_bytes - facts.other_bytes == 10 * MB


@pytest.mark.parametrize("kind", ["trace", "sql"])
def test_a_changed_load_has_disk_reads_of_its_own(on_host: Path) -> None:
    asked = ["orders grows 3x", "keep log warm"]
    found = predict(on_host, sizes_bytes=[8 * MB], what_if=asked)
    assert found.changed is not None and found.changed.memory is not None and found.memory is not None
    [before], [after] = found.memory.points, found.changed.memory.points
    assert after.page_cache_bytes == before.page_cache_bytes
    assert after.disk_reads_per_second > 1.2 * before.disk_reads_per_second


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        (["without orders"], LOAD.without("orders")),
        (["orders grows 2x"], LOAD.grown("orders", 2)),
        (["keep log warm"], replace(LOAD, kept="log")),
        (["scan orders every 1s"], replace(LOAD, scanned="orders", every=PER_SECOND)),
        (["connections 1.2x", "ram 100MB"], LOAD),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, list) else "",
)
def test_fitted_rates_say_what_the_changed_load_reads_from_disk(
    seen_on_host: Path, asked: list[str], changed: Load
) -> None:
    """Both caches of the changed load are simulated access by access, with a page cache of that size."""
    found = predict(seen_on_host, sizes_bytes=[8 * MB], what_if=asked)
    assert found.changed is not None and found.changed.memory is not None and found.memory is not None
    [point] = found.changed.memory.points
    share = changed.disk_share(8 * MB // 8192, point.page_cache_bytes // 8192)
    assert point.page_cache_hit_ratio is not None
    assert 1 - point.page_cache_hit_ratio == pytest.approx(share, abs=0.05)
    assert point.page_cache_hit_low <= 1 - share <= point.page_cache_hit_high
    misses = found.changed.points[0].miss_ratio * found.changed.accesses_per_second
    assert point.disk_reads_per_second == pytest.approx(misses * (1 - point.page_cache_hit_ratio), rel=0.01)
    assert point.disk_reads_low < point.disk_reads_per_second < point.disk_reads_high


@pytest.mark.slow
def test_another_memory_than_the_named_one(evidence: dict[str, Path]) -> None:
    """Where the host was not looked at, --ram is today's memory, and a what-if another one."""
    found = predict(
        evidence["sql"], sizes_bytes=[8 * MB], memory_bytes=32 * MB, what_if=["ram 48MB", "connections 2x"]
    )
    assert found.changed is not None and found.changed.memory is not None and found.memory is not None
    [before], [after] = found.memory.points, found.changed.memory.points
    assert (found.memory.memory_bytes, found.changed.memory.memory_bytes) == (32 * MB, 48 * MB)
    assert after.page_cache_bytes - before.page_cache_bytes == 16 * MB
    assert any("how many sessions" in reason for reason in found.changed.memory.reasons)
    alone = predict(evidence["sql"], sizes_bytes=[8 * MB], what_if=["ram 48MB"])
    assert alone.memory is None
    assert alone.changed is not None and alone.changed.memory is not None
    assert any("not checked against today's reads" in reason for reason in alone.changed.memory.reasons)


def test_the_memory_is_named_once(with_host: Path) -> None:
    with pytest.raises(UsageError, match="both name the memory"):
        predict(with_host, memory_bytes=1 << 30, what_if=["ram 2GB"])


def test_both_curves_are_shown_side_by_side(with_host: Path, tmp_path: Path) -> None:
    arguments = ["predict", str(with_host), "--sizes", "8MB,16MB"]
    arguments += ["--what-if", "without orders", "--what-if", "shared_buffers 12MB"]
    files = [tmp_path / f"x.{ending}" for ending in ("html", "csv", "json")]
    for path in files:
        arguments += ["-o", str(path)]
    done = run(*arguments, "--fail-if", "verdict!=reliable")
    assert done.returncode == 5, done.stderr
    text = done.stdout + done.stderr
    assert "verdict is rough" in text
    html, rows, found = (path.read_text() for path in files)
    assert "nobody accesses orders" in html
    assert json.loads(found)["changed"]["verdict"]["level"] == "rough"
    head, *lines = rows.splitlines()
    columns = head.split(",")
    at = columns.index("what_if_miss_ratio")
    assert columns[at + 1 : at + 3] == ["what_if_low", "what_if_high"]
    assert columns[-3] == "what_if_throughput_ratio"
    assert len(lines) == 3 and all(float(line.split(",")[at]) > 0 for line in lines)
    text = VIEW.text(msgspec.json.decode(found, type=PredictResult), Terminal(width=120, unicode=False))
    assert "What if (assumed):" in text and "nobody accesses orders" in text
    assert "With the what-ifs: " in text and "disk reads/s" in text
    # The curve, the memory, the disk reads, what is saved, and the what-if.
    tables = [line for line in text.splitlines() if line.startswith("         12 MB")]
    assert len(tables) == 5
    assert "throughput is not predicted for another load" in " ".join(text.split())


def test_a_relation_that_is_not_there_is_refused_with_those_that_are_near(
    evidence: dict[str, Path],
) -> None:
    for path in evidence.values():
        with pytest.raises(UsageError, match="knows no relation `order`") as caught:
            predict(path, what_if=["order grows 2x"])
        assert caught.value.hint == "did you mean orders?"
        with pytest.raises(UsageError) as caught:
            predict(path, what_if=['without "Xyz"'])
        assert "largest relations are items, orders, log" in str(caught.value.hint)


def test_a_trace_that_is_too_short_for_scans_says_how_long_it_must_be(evidence: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="a trace of 15 s is too short") as caught:
        predict(evidence["trace"], what_if=["scan orders every 1min"])
    assert "record for about 4 min" in str(caught.value.hint)


def test_nothing_left_of_the_load_is_refused(evidence: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="nothing is left of the load"):
        predict(evidence["trace"], what_if=["without items", "without orders", "without log"])


def test_sentences_are_read_as_people_write_them() -> None:
    texts = ['Public."My Orders" grows 2.5x', "SCAN a.b EVERY 2min", "shared_buffers 8 GB"]
    [grows, scan, size] = parse(texts)
    assert isinstance(grows, Grows) and isinstance(scan, Scan) and isinstance(size, SharedBuffers)
    assert (grows.relation, grows.factor) == (("public", "My Orders"), 2.5)
    assert (scan.relation, scan.every_seconds) == (("a", "b"), 120.0)
    assert size.size_bytes == 8 << 30


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "orders shrinks 2x",
        "orders grows 1x",
        "orders grows 1e9x",
        "scan orders every 0s",
        "insert into orders 0 rows/s",
        "connections 0x",
        "ram much",
        "ram 0GB",
        "huge_pages try",
        "shared_buffers 8",
        "without orders; DROP TABLE x",
        'without "orders',
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_hint(text: str, evidence: dict[str, Path]) -> None:
    with pytest.raises(UsageError) as caught:
        predict(evidence["trace"], what_if=[text])
    assert caught.value.exit_code == 2 and caught.value.hint


@pytest.mark.parametrize(
    "texts",
    [
        ("connections 2x", "connections 3x"),
        ("ram 1GB", "ram 2GB"),
    ],
)
def test_what_contradicts_itself_is_refused(texts: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="contradict each other"):
        parse(texts)


@pytest.mark.parametrize("kind", ["trace", "sql"])
@pytest.mark.parametrize(
    "texts",
    [
        ("without orders", "orders grows 2x"),
        ("orders grows 2x", "public.orders grows 3x"),
        ("keep orders warm", 'keep public."orders" warm'),
    ],
)
def test_a_relation_is_the_same_under_each_of_its_names(
    texts: tuple[str, str], kind: str, evidence: dict[str, Path]
) -> None:
    with pytest.raises(UsageError, match="contradict each other") as caught:
        predict(evidence[kind], what_if=texts)
    assert "both are about orders" in (caught.value.cause or "")


def test_an_index_goes_with_its_table() -> None:
    columns = {"db": [5, 5, 5], "oid": [11, 12, 13], "table_oid": [11, 11, 13], "kind": ["r", "i", "r"]}
    columns |= {"schema": ["public"] * 3, "name": ["orders", "orders_pkey", "items"], "rel": [11, 12, 13]}
    columns |= {"blocks_begin": [9, 2, 9], "blocks_end": [9, 2, 9], "tuples_per_block": [50.0, 0.0, 50.0]}
    relations = {name: np.array(values) for name, values in columns.items()}
    for texts in (
        ["keep orders warm", "keep orders_pkey warm"],
        ["without public.orders", "keep orders_pkey warm"],
        ["orders_pkey grows 3x", "orders grows 2x"],
    ):
        with pytest.raises(UsageError, match="contradict each other") as caught:
            check_relations(parse(texts), relations, 5)
        assert "both are about orders_pkey" in (caught.value.cause or "")
    fitting = ["keep orders warm", "keep items warm", "orders grows 2x", "scan orders every 60s"]
    check_relations(parse(fitting), relations, 5)


def test_drops_stay_before_the_accesses_that_they_stood_before(tmp_path: Path) -> None:
    path = LOAD.write_trace(tmp_path / "x.evidence", count=2_000)
    evidence = Evidence.open(path)
    accesses = evidence.table("accesses")
    rows = np.array([0, 700, 1999, 2000], dtype=np.uint64)
    columns = evidence.table("drops")
    drops = {name: np.zeros(len(rows), dtype=column.dtype) for name, column in columns.items()}
    drops.update(row=rows, rel=np.full(len(rows), 1, dtype=np.uint32))

    class WithDrops:
        meta, warnings = evidence.meta, evidence.warnings

        def table(self, name: str, _columns: object = None) -> dict[str, np.ndarray]:
            return dict(drops) if name == "drops" else evidence.table(name)

    asked = parse(["without orders", "scan log every 50ms"])
    changed = RewrittenTrace(WithDrops(), asked, np.random.default_rng(0))
    after = changed.table("accesses")
    kept = accesses["rel"] != 20_001
    recorded = after["pid"] == 1
    assert np.array_equal(after["block"][recorded], accesses["block"][kept])
    assert np.count_nonzero(~recorded) > 450
    for old, new in zip(rows.tolist(), changed.table("drops")["row"].tolist(), strict=True):
        assert np.count_nonzero(recorded[:new]) == np.count_nonzero(kept[:old])
    assert np.all(np.diff(after["time_ns"].astype(np.int64)) >= 0)


def test_scans_read_all_that_a_relation_has_grown_to(tmp_path: Path) -> None:
    path = LOAD.write_trace(tmp_path / "x.evidence", count=20_000)
    asked = parse(["log grows 1.5x", "scan log every 1s"])
    changed = RewrittenTrace(Evidence.open(path), asked, np.random.default_rng(0))
    after = changed.table("accesses")
    mine = after["rel"] == 20_002
    scans = mine & (after["scan"] > 0)
    assert set(after["block"][scans].tolist()) == set(range(675))
    visited = after["block"][mine & ~scans]
    assert visited.max() < 675 and len(np.unique(visited)) > 600
    assert int(changed.table("relations")["blocks_end"][2]) == 675
    assert POOL in SIZES
