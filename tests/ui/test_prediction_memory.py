"""How the page cache behind the pool is shown: text, page, rows and JSON."""

from __future__ import annotations

import zipfile
from pathlib import Path

import msgspec
import pytest

from pgsweep.records.prediction import (
    DiskLatency,
    DiskPoint,
    MemoryPrediction,
    MemoryUse,
    PredictResult,
    ReadCosts,
    Throughput,
    ThroughputPoint,
)
from pgsweep.sizing.predict import predict
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.prediction import VIEW
from pgsweep.units import format_bytes
from tests.fix_cli import run
from tests.fix_results import MB, cells_of, heads_of, predict_result

GB = 1024 * MB


def point(size_bytes: int, hits: float | None, reads: float) -> DiskPoint:
    return DiskPoint(
        shared_buffers_bytes=size_bytes,
        page_cache_bytes=8 * GB - size_bytes,
        page_cache_low_bytes=7 * GB - size_bytes,
        page_tables_bytes=2 * MB,
        page_cache_hit_ratio=hits,
        page_cache_hit_low=0.0 if hits is None else hits - 0.02,
        page_cache_hit_high=1.0 if hits is None else hits + 0.02,
        disk_reads_per_second=reads,
        disk_reads_low=reads * 0.9,
        disk_reads_high=reads * 1.2,
        disk_bytes_per_second=reads * 10_000,
        disk_bytes_low=reads * 9_000,
        disk_bytes_high=reads * 12_000,
        held_twice_bytes=0 if size_bytes < 32 * MB else 16 * MB,
        held_twice_low_bytes=0,
        held_twice_high_bytes=17 * MB,
    )


@pytest.fixture
def result() -> PredictResult:
    memory = MemoryPrediction(
        memory_bytes=16 * GB,
        memory_from="cgroup",
        other_bytes=3 * GB,
        measured_disk_bytes_per_second=3_400_000.0,
        policy="two-lists",
        points=[point(16 * MB, 0.9, 2500.0), point(64 * MB, 0.8, 3000.0)],
        reasons=["shared_buffers of 512 MB leave no page cache in 16 GB"],
    )
    return msgspec.structs.replace(predict_result(source="trace"), memory=memory)


def test_text_has_disk_reads_with_their_interval(result: PredictResult) -> None:
    shown = VIEW.text(result, Terminal(width=100, unicode=False))
    assert "Memory to share: 16 GB (the memory cgroup's limit). 3 GB of it" in shown
    line = next(line for line in shown.splitlines() if "2 700 to 3 600" in line)
    assert line.split()[:2] == ["64", "MB"]
    assert "80.00%" in line
    assert "today" in line
    assert "shared_buffers of 512 MB leave no page cache" in shown


def test_a_share_that_is_not_known_has_a_dash_and_no_interval(result: PredictResult) -> None:
    assert result.memory is not None
    points = [point(16 * MB, 0.9, 2500.0), point(64 * MB, None, 0.0)]
    found = msgspec.structs.replace(result, memory=msgspec.structs.replace(result.memory, points=points))
    text = VIEW.text(found, Terminal(width=160, tables=True))
    (row,) = (line for line in text.splitlines() if line.strip().startswith("64 MB") and "–" in line)
    assert row.count("%") == 0


def test_throughput_stands_beside_the_disk_reads(result: PredictResult) -> None:
    assert result.memory is not None
    points = [
        ThroughputPoint(shared_buffers_bytes=16 * MB, ratio=1.25, low=1.1, high=1.4),
        ThroughputPoint(shared_buffers_bytes=64 * MB, ratio=1.0, low=1.0, high=1.0),
    ]
    loop = Throughput(
        points=points,
        reasons=["throughput is for as many sessions as today"],
        disk_depth=2.345,
        disk_latencies=[
            DiskLatency(depth=depth, seconds=depth * 1e-4, error_seconds=1e-6, reads=900) for depth in (1, 2)
        ],
        disk_most_reads_per_second=12_345.6,
    )
    with_it = msgspec.structs.replace(result, memory=msgspec.structs.replace(result.memory, throughput=loop))
    shown = VIEW.text(with_it, Terminal(width=120, unicode=False))
    line = next(line for line in shown.splitlines() if "1.25 x" in line)
    assert "1.10 to 1.40" in line
    assert "throughput is for as many sessions as today" in shown
    latency = " ".join(shown.split())
    assert "2.35 sessions wait for the disk at once today; besides" in latency
    assert "(measured), 1: 100, 2: 200; the disk serves 12 346 reads/s at most" in latency
    section = VIEW.page(with_it).sections[2]
    assert all(len(row) == len(heads_of(section)) for row in cells_of(section))
    rows = VIEW.rows(with_it)
    at = list(rows.head).index("predicted_throughput_ratio")
    assert [line[at] for line in rows.lines] == [1.25, None, 1.0, None, None, None]


@pytest.fixture
def budgeted(result: PredictResult) -> PredictResult:
    """The same with the budget, what a gigabyte saves, and the throughput."""
    assert result.memory is not None
    use = MemoryUse(
        memory_bytes=16 * GB,
        shared_memory_bytes=66 * MB,
        page_tables_bytes=40 * MB,
        page_tables_saved_bytes=30 * MB,
        processes=66,
        private_bytes=GB,
        rest_bytes=2008 * MB,
        page_cache_bytes=13246 * MB,
        huge_pages=False,
    )
    more: dict[str, float] = {"shared_memory_bytes": 66 * MB, "page_tables_most_bytes": 8 * MB}
    more |= {"wait_ratio": 0.25, "wait_low": 0.225, "wait_high": 0.3}
    small = msgspec.structs.replace(
        result.memory.points[0],
        **more,
        saved_seconds_per_gb=-1.07,
        saved_seconds_per_gb_low=-2.88,
        saved_seconds_per_gb_high=0.64,
    )
    points = [small, msgspec.structs.replace(result.memory.points[1], **more)]
    costs = ReadCosts(
        disk_read_seconds=2.2e-4, disk_read_kind="measured", copy_seconds=2e-6, copy_kind="assumed"
    )
    loop = [
        ThroughputPoint(shared_buffers_bytes=16 * MB, ratio=1.25, low=1.1, high=1.4),
        ThroughputPoint(shared_buffers_bytes=64 * MB, ratio=1.0, low=1.0, high=1.0),
    ]
    memory = msgspec.structs.replace(
        result.memory, use=use, points=points, costs=costs, throughput=Throughput(points=loop, reasons=[])
    )
    return msgspec.structs.replace(result, memory=memory)


def test_each_prediction_has_its_interval_where_there_is_room(budgeted: PredictResult) -> None:
    wide = VIEW.text(budgeted, Terminal(width=120, interactive=True))
    for words in ("88.00 to 92.00%", "0 to 17 MB", "2 250 to 3 000", "-2 880 to 640", "225 to 300"):
        assert words in wide
    assert max(map(len, wide.splitlines())) <= 120
    narrow = VIEW.text(budgeted, Terminal(width=80, interactive=True))
    assert max(map(len, narrow.splitlines())) <= 80
    # Intervals give way before what they belong to, and those of what decides stay.
    assert "90.00%" in narrow
    assert "88.00 to 92.00%" not in narrow
    for words in ("2 250 to 3 000", "-1 070", "-2 880 to 640", "1.25 x", "1.10 to 1.40"):
        assert words in narrow
    assert "220 µs (measured), a copy from the page cache 2 µs (assumed)" in " ".join(narrow.split())


def test_the_budget_is_broken_down(budgeted: PredictResult) -> None:
    shown = VIEW.text(budgeted, Terminal(width=100, unicode=False))
    for words in (
        "66 MB  shared memory touched",
        "40 MB  page tables of the server's processes; huge pages would save 30 MB",
        "1 GB  private memory of the server's 66 processes",
        "1.96 GB  other programs and the kernel",
        "12.9 GB  page cache, and free for it",
    ):
        assert words in shown
    [section] = [one for one in VIEW.page(budgeted).sections if one.ident == "memory"]
    assert [cell.text for cell in cells_of(section)[0]] == [
        "16 MB",
        "66 MB",
        "2 MB",
        "8 MB",
        "7.98 GB",
        "6.98 GB",
    ]
    assert [fact.kind for fact in section.facts] == ["measured"] * 5


def test_page_and_rows_have_what_a_gigabyte_saves(budgeted: PredictResult) -> None:
    section = VIEW.page(budgeted).sections[2]
    at = heads_of(section).index("saved, ms/s per GB")
    found = [(row[at].text, row[at].note) for row in cells_of(section)]
    assert found == [("-1 070", "-2 880 to 640"), ("", "")]
    assert all(len(row) == len(heads_of(section)) for row in cells_of(section))
    rows = VIEW.rows(budgeted)
    first = dict(zip(rows.head, rows.lines[0], strict=True))
    assert first["predicted_saved_seconds_per_gb_low"] == -2.88
    assert first["predicted_page_tables_bytes"] == 2 * MB
    assert msgspec.json.decode(msgspec.json.encode(budgeted), type=PredictResult) == budgeted


def test_rows_are_empty_where_no_page_cache_is_left(result: PredictResult) -> None:
    rows = VIEW.rows(result)
    head = list(rows.head)
    at = head.index("predicted_disk_reads_per_second")
    assert [line[at] for line in rows.lines] == [2500.0, None, 3000.0, None, None, None]
    assert all(len(line) == len(head) for line in rows.lines)
    without = VIEW.rows(predict_result())
    assert len(without.head) == 4


def test_page_names_what_was_measured(result: PredictResult) -> None:
    section = VIEW.page(result).sections[2]
    assert section.title == "Disk reads by shared_buffers"
    assert ("3.24 MB/s", "measured") in [(fact.value, fact.kind) for fact in section.facts]
    assert cells_of(section)[0][2].note == "88.00 to 92.00%"


def test_json_is_read_back(result: PredictResult) -> None:
    assert msgspec.json.decode(msgspec.json.encode(result), type=PredictResult) == result


def test_memory_that_was_assumed_is_named_so(result: PredictResult) -> None:
    assert result.memory is not None
    memory = msgspec.structs.replace(result.memory, other_assumed=True)
    assumed = msgspec.structs.replace(result, memory=memory)
    shown = VIEW.text(assumed, Terminal(width=100, unicode=False))
    assert "of it are neither shared memory nor cached files (assumed)" in " ".join(shown.split())
    facts = VIEW.page(assumed).sections[2].facts
    assert ("3 GB", "") in [(fact.value, fact.kind) for fact in facts]


def test_a_refused_prediction_says_nothing_of_the_disk(tmp_path: Path) -> None:
    seeds = Path(__file__).parents[1] / "fuzz" / "seeds" / "evidence" / "sql.zip"
    done = run("predict", str(seeds), "--ram", "0GB")
    assert done.returncode == 2
    with zipfile.ZipFile(seeds) as packed:
        packed.extractall(tmp_path)
    folder = next(path.parent for path in tmp_path.rglob("meta.json"))
    refused = predict(folder, memory_bytes=GB)
    assert (refused.verdict.level, refused.points, refused.memory) == ("refused", [], None)


def test_without_the_tables_there_is_the_decision_and_a_line(budgeted: PredictResult) -> None:
    short = VIEW.text(budgeted, Terminal(width=100, tables=False))
    whole = VIEW.text(budgeted, Terminal(width=100))
    assert len(short.splitlines()) < len(whole.splitlines()) - 15
    assert "of shared_buffers instead of" in short or "No certain change" in short
    line = " ".join(short[short.index("\nPage cache: ") :].split("\n\n")[0].split())
    assert line.endswith("disk reads/s. More: --memory")
    assert "misses found in" not in short
    assert "misses found in" in whole


def test_sizes_that_hold_the_whole_database_are_one_row(budgeted: PredictResult) -> None:
    today = budgeted.observed.shared_buffers_bytes
    first = budgeted.points[0]
    sizes = [today * factor for factor in (1, 2, 4, 8, 16)]
    points = [
        msgspec.structs.replace(first, shared_buffers_bytes=size, miss_ratio=ratio, low=ratio, high=ratio)
        for size, ratio in zip(sizes, (0.25, 0.1, 0.01, 0.01, 0.01), strict=True)
    ]
    found = msgspec.structs.replace(budgeted, points=points, memory=None)
    text = VIEW.text(found, Terminal(width=100))
    assert text.count("1.00 to 1.00%") == 1
    assert f"{format_bytes(sizes[2])} to {format_bytes(sizes[4])}" in text
    # Today's size keeps its own row, and one size is no range.
    flat = [msgspec.structs.replace(point, miss_ratio=0.01, low=0.01, high=0.01) for point in points[:2]]
    assert (
        VIEW.text(msgspec.structs.replace(found, points=flat), Terminal(width=100)).count("1.00 to 1.00%")
        == 2
    )
