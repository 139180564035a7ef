"""Files that nobody recorded: each ends in an error in words, at once, in little memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsweep.errors import EvidenceError, HeatError, UsageError
from pgsweep.evidence.gathered import import_gathered
from pgsweep.pg.gather_script import MAGIC
from pgsweep.sizing.predict import predict
from pgsweep.warm.heat.file import HeatPart, read_heat
from tests.fix_cli import run, run_code
from tests.fix_seeds import evidence
from tests.fix_warm import heat_meta
from tests.fuzz.targets import SEEDS

MB = 1 << 20


_MEASURED = """
import sys, time
from pathlib import Path
from pgsweep.errors import PgsweepError
import numpy.random, pyarrow.compute, pyarrow.parquet, scipy.optimize
import pgsweep.evidence.store, pgsweep.sizing.snapshots.fit, pgsweep.sizing.traces.curve
import pgsweep.sizing.snapshots.unfilled, pgsweep.sizing.snapshots.used_snapshots
import pgsweep.ui.results, pgsweep.warm.heat.file
from pgsweep.evidence.gathered import import_gathered
from pgsweep.evidence.oracle_general import read_oracle_general
from pgsweep.sizing.predict import predict
from pgsweep.ui.results import read_result
from pgsweep.warm.heat.file import read_heat

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10

before, began = peak(), time.process_time()
try:
    print(({call})(Path(sys.argv[1])).__class__.__name__)
except PgsweepError as error:
    print(type(error).__name__, error.message, error.cause)
print(peak() - before, time.process_time() - began)
"""
"""The peak is that of the process itself: getrusage() gives one that has been begun the peak of whoever began
it. What importing numpy and pyarrow takes is left out, and is more than all that follows."""


MOST_BYTES = 200 * MB


MOST_SECONDS = 3.0
"""What a hostile or broken file may take, of memory and of processor time, beyond the imports. Time of the
processor, lest other work on the machine counts; what threads take at the same time adds up in it."""


def cost(call: str, path: Path) -> tuple[str, int, float]:
    """Return what reading a file says, and what it takes beyond the imports: bytes, seconds of a processor.

    Where it takes longer than it may, it is read again: a busy machine makes processors slow.
    """
    for _ in range(3):
        said, peak_bytes, seconds = _cost(call, path)
        if seconds < MOST_SECONDS:
            break
    return said, peak_bytes, seconds


def _cost(call: str, path: Path) -> tuple[str, int, float]:
    done = run_code(_MEASURED.replace("{call}", call), str(path))
    assert done.returncode == 0, done.stderr
    *said, numbers = done.stdout.splitlines()
    peak_bytes, seconds = numbers.split()
    return "\n".join(said), int(peak_bytes), float(seconds)


def change(folder: Path, table: str, column: str, values: Callable[[np.ndarray], Any]) -> None:
    """Write a column of a part anew."""
    part = folder / table / "part-00000.parquet"
    rows = pq.read_table(part)
    at = rows.column_names.index(column)
    found = rows.column(at).to_numpy()
    changed = pa.array(values(found.copy()), type=rows.schema.field(at).type)
    pq.write_table(rows.set_column(at, column, changed), part)


def set_meta(folder: Path, **fields: Any) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, **fields}))


def one(value: float, at: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    """Set one value of a column."""

    def set_one(values: np.ndarray) -> np.ndarray:
        values[at] = value
        return values

    return set_one


def put(folder: Path, table: str, **columns: Any) -> None:
    """Write a part anew; what is not named is as in its first row, or empty."""
    part = folder / table / "part-00000.parquet"
    rows = pq.read_table(part)
    count = len(next(iter(columns.values())))
    made = {}
    for field in rows.schema:
        nothing = "" if pa.types.is_string(field.type) else 0
        first = rows.column(field.name)[0].as_py() if rows.num_rows else nothing
        made[field.name] = pa.array(columns.get(field.name, [first] * count), type=field.type)
    pq.write_table(pa.table(made, schema=rows.schema), part)


def spread_over_huge_relations(folder: Path, relations: int = 40, accessed: int = 40) -> None:
    """Let a trace name relations of 16 TB each, and let its accesses be anywhere in the first of them."""
    rel = 1000 + np.arange(relations)
    most = np.full(relations, 2**32 - 2)
    put(folder, "relations", rel=rel, oid=rel, blocks_begin=most, blocks_end=most)
    count = len(pq.read_table(folder / "accesses" / "part-00000.parquet"))
    change(folder, "accesses", "rel", lambda _: 1000 + np.arange(count) % min(accessed, relations))
    change(folder, "accesses", "block", lambda _: np.arange(count) * ((2**32 - 2) // count))


@pytest.mark.parametrize(
    ("seed", "table", "column", "value"),
    [
        ("trace", "accesses", "strategy", 7),
        ("trace", "accesses", "strategy", 255),
        ("trace", "accesses", "kind", 3),
        ("trace", "accesses", "fork", 200),
        ("trace", "accesses", "time_ns", 2**64 - 1),
        ("trace", "relations", "blocks_end", 10**18),
        ("trace", "relations", "blocks_end", -1),
        ("trace", "relations", "fsm_blocks", -(2**63)),
        ("sql", "snapshots", "usage_count", 16),
        ("sql", "snapshots", "frame", -1),
        ("sql", "snapshots", "frame", 65),
        ("sql", "snapshots", "snapshot", -5),
        ("sql", "snapshot_times", "used_frames", 65),
        ("sql", "counters", "seconds", float("nan")),
        ("sql", "counters", "value", float("nan")),
        ("sql", "counters", "value", float("inf")),
        ("sql", "counters", "value", -2.0),
        ("sql", "counters", "value", -1.0),
        ("peek", "counters", "value", 1e300),
    ],
)
def test_a_value_that_cannot_be_is_refused(
    seed: str, table: str, column: str, value: float, tmp_path: Path
) -> None:
    folder = evidence(tmp_path, seed)
    change(folder, table, column, one(value))
    with pytest.raises(EvidenceError) as caught:
        predict(folder)
    assert caught.value.cause and caught.value.hint
    assert "record again" in caught.value.hint


@pytest.mark.parametrize(
    "fields",
    [
        {"shared_buffers_blocks": 10**18},
        {"shared_buffers_blocks": -16},
        {"seconds": -1.0},
        {"seconds": 1e300},
        {"block_size_bytes": 0},
        {"block_size_bytes": 5000},
        {"server_version_num": -180000},
        {"database_oid": -1},
        {"sampling": {"snapshots": 0.0, "block_seed": 1.0}},
        {"sampling": {"snapshots": 0.5}},
        {"sampling": {"snapshots": 0.5, "block_seed": -1.0}},
        {"host": {"recovery_pid": "many"}},
        {"lost_events": -1},
    ],
)
def test_a_fact_that_cannot_be_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    set_meta(folder, **fields)
    with pytest.raises(EvidenceError, match=r"meta\.json` is broken"):
        predict(folder)


def test_a_missing_value_or_another_type_is_refused(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "sql")
    change(folder, "counters", "value", lambda values: [None, *values[1:]])
    with pytest.raises(EvidenceError, match="damaged") as caught:
        predict(folder)
    assert "missing" in (caught.value.cause or "")
    part = folder / "counters" / "part-00000.parquet"
    rows = pq.read_table(part)
    at = rows.column_names.index("value")
    pq.write_table(rows.set_column(at, "value", pa.array(["x"] * rows.num_rows)), part)
    with pytest.raises(EvidenceError, match="damaged") as caught:
        predict(folder)
    assert "not float64" in (caught.value.cause or "")


def test_one_position_of_the_hand_that_goes_backwards_costs_one_snapshot(tmp_path: Path) -> None:
    """The server changes nextVictimBuffer, then completePasses (ClockSweepTick, freelist.c)."""
    folder = evidence(tmp_path, "peek")
    hands = hand_rows(folder)
    change(folder, "counters", "value", one(1000.0, hands[6]))
    began = time.process_time()
    result = predict(folder, sizes_bytes=[256 << 10])
    assert time.process_time() - began < 30
    assert any("1 of 12 snapshots left out" in reason.text for reason in result.verdict.reasons)
    # A position that is too high is the same mistake.
    folder = evidence(tmp_path / "high", "peek")
    change(folder, "counters", "value", one(1e9, hand_rows(folder)[6]))
    again = predict(folder, sizes_bytes=[256 << 10])
    assert again.points == result.points


def hand_rows(folder: Path) -> list[int]:
    rows = pq.read_table(folder / "counters" / "part-00000.parquet")
    return [at for at, name in enumerate(rows["name"].to_pylist()) if name == "hand_frames"]


def test_a_snapshot_whose_hand_was_not_seen_costs_that_snapshot_only(tmp_path: Path) -> None:
    """The positions that are there stay with the snapshots that they were read at."""
    folder = evidence(tmp_path, "peek")
    part = folder / "counters" / "part-00000.parquet"
    rows = pq.read_table(part)
    gone = hand_rows(folder)[6]
    pq.write_table(pa.concat_tables([rows.slice(0, gone), rows.slice(gone + 1)]), part)
    without = predict(folder, sizes_bytes=[256 << 10])
    assert any("1 of 12 snapshots left out" in reason.text for reason in without.verdict.reasons)
    # As one whose position cannot be right, which is left out too.
    folder = evidence(tmp_path / "wrong", "peek")
    change(folder, "counters", "value", one(1000.0, hand_rows(folder)[6]))
    assert predict(folder, sizes_bytes=[256 << 10]).points == without.points


def test_a_hand_that_goes_backwards_again_and_again_is_refused(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "peek")
    hands = hand_rows(folder)

    def backwards(values: np.ndarray) -> np.ndarray:
        values[hands] = values[hands][::-1]
        return values

    change(folder, "counters", "value", backwards)
    with pytest.raises(EvidenceError, match="contradict each other") as caught:
        predict(folder)
    assert "goes backwards in 11 of 12" in (caught.value.cause or "")


def test_huge_block_numbers_take_no_memory(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    count = len(pq.read_table(folder / "accesses" / "part-00000.parquet"))
    change(folder, "accesses", "rel", lambda _: np.arange(count) % 40)
    change(folder, "accesses", "block", lambda _: np.full(count, 2**32 - 2) - np.arange(count) * 1000)
    said, peak_bytes, seconds = cost("predict", folder)
    assert said == "PredictResult"
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


_HUGE_RELATIONS = {
    "None": "PredictResult",
    "[8 << 30]": "PredictResult",
    "[64 << 30]": "a pool of 64 GB is too large to replay the trace in",
    "[1 << 30, 7 << 40]": "a pool of 7 TB is too large to replay the trace in",
}


@pytest.mark.parametrize("sizes", _HUGE_RELATIONS)
def test_huge_relations_take_what_their_accesses_take(sizes: str, tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    spread_over_huge_relations(folder)
    said, peak_bytes, seconds = cost(f"lambda path: predict(path, sizes_bytes={sizes})", folder)
    assert _HUGE_RELATIONS[sizes] in said
    assert said == "PredictResult" or "its 2000 accesses show nothing" in said
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


def test_half_a_million_relations_take_what_their_rows_take(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    spread_over_huge_relations(folder, 500_000)
    said, peak_bytes, seconds = cost("predict", folder)
    assert said == "PredictResult"
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


@pytest.mark.parametrize("version_num", [180000, 190000])
@pytest.mark.parametrize("huge", [False, True])
def test_a_pool_said_to_be_the_largest_there_can_be_takes_nothing(
    version_num: int, huge: bool, tmp_path: Path
) -> None:
    """From 19 on there is no list of free buffers, and the hand looks for them."""
    folder = evidence(tmp_path, "trace")
    set_meta(folder, shared_buffers_blocks=2**30 - 1, server_version_num=version_num)
    if huge:
        spread_over_huge_relations(folder, 10)
    said, peak_bytes, seconds = cost("lambda path: predict(path, sizes_bytes=[1 << 30])", folder)
    assert ("the trace is too short for the pool" in said) if huge else said == "PredictResult"
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


def test_a_dropped_relation_that_is_said_to_be_huge_takes_little(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    spread_over_huge_relations(folder, 10)
    put(folder, "drops", row=[5], spc=[1663], db=[5], rel=[1000], fork=[255], first_block=[0])
    said, peak_bytes, seconds = cost("predict", folder)
    assert said == "PredictResult"
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS
    reasons = predict(folder).verdict.reasons
    [untracked] = [reason.text for reason in reasons if reason.code == "blocks-not-tracked"]
    assert "4 294 836 222 blocks" in untracked.replace("\u2009", " ")


@pytest.mark.parametrize("rel", [0, 16384])
def test_pages_that_are_dropped_without_end_are_refused(rel: int, tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    count = 50_000
    put(
        folder,
        "drops",
        row=np.arange(count) % 2000,
        spc=np.full(count, 1663),
        db=np.full(count, 5),
        rel=np.full(count, rel),
        fork=np.full(count, 255),
        first_block=np.zeros(count, int),
    )
    said, peak_bytes, seconds = cost("predict", folder)
    assert "the drops in this evidence contradict its accesses" in said
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


def test_a_drop_of_all_forks_is_no_damage(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    put(folder, "drops", row=[500, 900], spc=[1663, 0], db=[5, 5], rel=[16384, 0], fork=[255, 255])
    assert predict(folder).source == "trace"
    put(folder, "drops", row=[500], fork=[254])
    with pytest.raises(EvidenceError, match="damaged"):
        predict(folder)


def test_a_record_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "sql")
    os.truncate(folder / "meta.json", 6 << 30)
    said, peak_bytes, seconds = cost("predict", folder)
    assert "is not what record writes" in said and "1048576 bytes" in said
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


@pytest.mark.parametrize("file", ["meta.json", "counters/part-00000.parquet", "snapshots/part-00000.parquet"])
def test_a_fifo_in_evidence_is_refused_and_not_waited_for(file: str, tmp_path: Path) -> None:
    folder = evidence(tmp_path, "sql")
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(EvidenceError, match="is not what record writes"):
        predict(folder)


def test_a_fifo_as_heat_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "shop.heat")
    with pytest.raises(HeatError, match="is not a heat file"):
        read_heat(tmp_path / "shop.heat")


def test_json_without_end_is_refused(tmp_path: Path) -> None:
    deep = b'{"schema":"pgsweep.evidence/1","source":' + b'{"a":' * 100_000
    folder = evidence(tmp_path, "sql")
    (folder / "meta.json").write_bytes(deep)
    path = tmp_path / "r.json"
    path.write_bytes(b'{"a":' * 100_000)
    for call, file, words in (("predict", folder, "is broken"), ("read_result", path, "is not a result")):
        said, peak_bytes, seconds = cost(call, file)
        assert words in said, said
        assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


def test_a_time_that_is_text_in_a_recording_that_was_cut_is_refused(tmp_path: Path) -> None:
    """How long a cut recording went on is what its last rows say."""
    folder = evidence(tmp_path, "sql")
    set_meta(folder, complete=False)
    part = folder / "counters" / "part-00000.parquet"
    rows = pq.read_table(part)
    at = rows.column_names.index("seconds")
    pq.write_table(rows.set_column(at, "seconds", pa.array(["../.."] * rows.num_rows)), part)
    with pytest.raises(EvidenceError, match="damaged"):
        predict(folder)


def test_rows_without_end_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """A run of equal values takes a few bytes, however long it is."""
    folder = evidence(tmp_path, "trace")
    part = folder / "drops" / "part-00000.parquet"
    rows = pq.read_table(part)
    few = pa.table(
        {name: pa.array(np.zeros(1 << 20), type=rows.schema.field(name).type) for name in rows.schema.names}
    )
    with pq.ParquetWriter(part, rows.schema) as writer:
        for _ in range(16):
            writer.write_table(few)
    assert part.stat().st_size < MB
    said, peak_bytes, seconds = cost("predict", folder)
    assert "damaged it takes" in said and "would become more than" in said
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


def test_heat_without_end_is_refused_in_its_first_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.heat"
    rows, groups = 1 << 20, 16
    fields = {"part": pa.int32(), "block": pa.int64(), "usage_count": pa.uint8(), "page_cache": pa.bool_()}
    columns = {
        name: pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["a"]))
        if kind is str
        else pa.array(np.zeros(rows), type=pa.int64())
        for name, kind in get_type_hints(HeatPart).items()
    }
    columns |= {
        name: pa.array(np.zeros(rows, bool if kind == "bool" else int), type=kind)
        for name, kind in fields.items()
    }
    meta = msgspec.json.encode(heat_meta(pool_blocks=rows * groups, page_cache_blocks=0))
    table = pa.table(columns).replace_schema_metadata({b"pgsweep.heat": meta})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(groups):
            writer.write_table(table)
    assert path.stat().st_size < MB
    said, peak_bytes, seconds = cost("read_heat", path)
    assert "damaged its rows do not agree" in said
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


def test_a_gathered_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gathered"
    head = f"{MAGIC}\ntag\ta\tb\n"
    path.write_bytes(gzip.compress((head + "x\t\t\n" * 4_000_000).encode()))
    said, peak_bytes, seconds = cost(
        "lambda path: import_gathered(path, path.with_suffix('.evidence'))", path
    )
    assert "it is not a row that the script prints" in said
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS
    path.write_text(head + "size\t\t\n" * 10_000)
    monkeypatch.setattr("pgsweep.evidence.gathered_file._MOST_SECTION_BYTES", MB)
    with pytest.raises(EvidenceError, match="is damaged: line 5") as refused:
        import_gathered(path, tmp_path / "x.evidence")
    assert refused.value.cause == "there is more between two marks than any server has"
    assert not (tmp_path / "x.evidence").exists()


def test_a_long_text_in_every_row_is_refused(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "sql")
    for text_bytes, words in (
        (1025, "a text in name has 1025 bytes"),
        (39 * MB, f"a text in name has {39 * MB} bytes"),
    ):
        count = len(pq.read_table(folder / "relations" / "part-00000.parquet", columns=["oid"]))
        put(folder, "relations", name=["A" * text_bytes] * count)
        said, peak_bytes, seconds = cost("predict", folder)
        assert words in said, said
        assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


def test_sizes_are_bounded(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    with pytest.raises(UsageError, match="too large for shared_buffers"):
        predict(folder, sizes_bytes=[10**18])
    with pytest.raises(UsageError, match="too many"):
        predict(folder, sizes_bytes=[MB + 8192 * number for number in range(1001)])
    done = run("predict", str(folder), "--sizes", "7TB", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    # A pool as large as that is replayed no slower than one that holds everything. These accesses, made by
    # hand, are those of no server, and the verdict says so.
    verdict = json.loads(done.stdout)["verdict"]
    assert verdict["level"] == "refused" and verdict["reasons"][0]["code"] == "start-decides"


@pytest.mark.parametrize("call", ["read_result", "read_heat", "predict"])
def test_a_file_without_end_is_not_read(call: str, tmp_path: Path) -> None:
    """Neither a device nor, where a file has a largest size, one of as many zeros as there may be."""
    whole = tmp_path / "zeros"
    whole.touch()
    os.truncate(whole, 64 << 30)
    device = Path("/dev/zero")
    expected = {
        "read_result": {
            path: f"PgsweepError cannot read `{path}`: it has more than 67108864 bytes None"
            for path in (device, whole)
        },
        "read_heat": {
            device: "HeatError `/dev/zero` is not a heat file it is not a regular file",
            whole: f"NoHeatFile `{whole}` is not a heat file it is not Parquet",
        },
        "predict": {device: "NotEvidence `/dev/zero` is a file, evidence is a folder None"},
    }[call]
    for path, sentence in expected.items():
        said, peak_bytes, seconds = cost(call, path)
        assert said == sentence
        assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS


def test_a_heat_file_with_missing_values_is_refused(tmp_path: Path) -> None:
    rows = pq.read_table(io.BytesIO((SEEDS / "heat" / "shop.heat").read_bytes()))
    for column in ("block", "part", "page_cache", "relation"):
        at = rows.column_names.index(column)
        values = [None, *rows.column(at).to_pylist()[1:]]
        kind = rows.schema.field(at).type
        path = tmp_path / column
        pq.write_table(rows.set_column(at, column, pa.array(values, type=kind)), path)
        with pytest.raises(HeatError):
            read_heat(path)


def test_a_pool_too_large_to_replay_in_is_refused_before_it_takes_the_memory(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    change(folder, "relations", "blocks_end", lambda values: np.full(len(values), 2**32 - 2))
    with pytest.raises(UsageError, match="too large to replay"):
        predict(folder, sizes_bytes=[7 << 40])
