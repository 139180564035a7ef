"""Files that nobody recorded: each ends in an error in words, at once, in little memory."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsweep.errors import EvidenceError, HeatError, PgsweepError, UsageError
from pgsweep.evidence.checks import trouble_in
from pgsweep.evidence.store import Evidence
from pgsweep.sizing.predict import predict
from pgsweep.ui.results import read_result
from pgsweep.warm.heat.file import read_heat
from tests.fuzz.mutate import unpack
from tests.fuzz.targets import SEEDS
from tests.test_cli import run

MB = 1 << 20

_MEASURED = """
import resource, sys, time
from pathlib import Path
from pgsweep.errors import PgsweepError
import numpy.random, pyarrow.compute, pyarrow.parquet, scipy.optimize
import pgsweep.evidence.store, pgsweep.sizing.inference.snapshots, pgsweep.sizing.inference.traces
import pgsweep.sizing.inference.unfilled, pgsweep.sizing.inference.observations
import pgsweep.ui.results, pgsweep.warm.heat.file
from pgsweep.sizing.predict import predict
from pgsweep.ui.results import read_result
from pgsweep.warm.heat.file import read_heat

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

before, began = peak(), time.process_time()
try:
    print({call}(Path(sys.argv[1])).__class__.__name__)
except PgsweepError as error:
    print(type(error).__name__, error.message, error.cause)
print(peak() - before, time.process_time() - began)
"""


def cost(call: str, path: Path) -> tuple[str, int, float]:
    """Return what reading a file says, and the bytes of memory and seconds of processor time it takes."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED.replace("{call}", call), str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    *said, numbers = done.stdout.splitlines()
    peak_bytes, seconds = numbers.split()
    return "\n".join(said), int(peak_bytes), float(seconds)


def evidence(tmp_path: Path, name: str) -> Path:
    """Unpack one of the seeds of fuzzing."""
    folder = tmp_path / f"{name}.evidence"
    for file, content in unpack((SEEDS / "evidence" / f"{name}.zip").read_bytes()).items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


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
        ("sql", "snapshots", "usage_count", 6),
        ("sql", "snapshots", "frame", -1),
        ("sql", "snapshots", "frame", 65),
        ("sql", "snapshots", "snapshot", -5),
        ("sql", "snapshot_times", "used_frames", 65),
        ("sql", "counters", "seconds", float("nan")),
        ("sql", "counters", "value", float("nan")),
        ("sql", "counters", "value", float("inf")),
        ("sql", "counters", "value", -2.0),
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
    assert any("1 of 12 snapshots left out" in reason for reason in result.verdict.reasons)
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
    assert any("1 of 12 snapshots left out" in reason for reason in without.verdict.reasons)
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
    said, peak_bytes, _ = cost("predict", folder)
    assert said == "PredictResult"
    assert peak_bytes < 200 * MB


def test_huge_relations_take_no_memory(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    change(folder, "relations", "blocks_end", lambda values: np.full(len(values), 2**32 - 2))
    said, peak_bytes, _ = cost("predict", folder)
    assert said == "PredictResult"
    assert peak_bytes < 200 * MB


def test_a_record_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "sql")
    os.truncate(folder / "meta.json", 6 << 30)
    said, peak_bytes, seconds = cost("predict", folder)
    assert "is not what record writes" in said and "1048576 bytes" in said
    assert peak_bytes < 200 * MB
    assert seconds < 5


@pytest.mark.parametrize("file", ["meta.json", "counters/part-00000.parquet", "snapshots/part-00000.parquet"])
def test_a_fifo_in_evidence_is_refused_and_not_waited_for(file: str, tmp_path: Path) -> None:
    folder = evidence(tmp_path, "sql")
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(EvidenceError, match="is not what record writes"):
        predict(folder)


def test_a_fifo_as_heat_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "shop.heat")
    with pytest.raises(HeatError, match="is no heat file"):
        read_heat(tmp_path / "shop.heat")


def test_json_without_end_is_refused(tmp_path: Path) -> None:
    deep = b'{"schema":"pgsweep.evidence/1","source":' + b'{"a":' * 100_000
    folder = evidence(tmp_path, "sql")
    (folder / "meta.json").write_bytes(deep)
    with pytest.raises(EvidenceError, match="is broken"):
        predict(folder)
    path = tmp_path / "r.json"
    path.write_bytes(b'{"a":' * 100_000)
    with pytest.raises(UsageError, match="is no result"):
        read_result(path)


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
    with pytest.raises(EvidenceError, match="damaged") as caught:
        Evidence.open(folder).table("drops")
    assert "16777216 rows" in (caught.value.cause or "")


def test_a_long_text_in_every_row_is_refused(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "sql")
    change(folder, "relations", "name", lambda values: ["A" * 50 * MB] * len(values))
    said, peak_bytes, _ = cost("predict", folder)
    assert "a text in name has 52428800 bytes" in said
    assert peak_bytes < 400 * MB


def test_sizes_are_bounded(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "trace")
    with pytest.raises(UsageError, match="more than the largest shared_buffers"):
        predict(folder, sizes_bytes=[10**18])
    with pytest.raises(UsageError, match="too many"):
        predict(folder, sizes_bytes=[MB + 8192 * number for number in range(1001)])
    done = run("predict", str(folder), "--sizes", "7TB", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    # A pool as large as that is replayed no slower than one that holds everything. These accesses, made by
    # hand, are those of no server, and the verdict says so.
    verdict = json.loads(done.stdout)["verdict"]
    assert verdict["level"] == "refused" and "measured" in verdict["reasons"][0]


_FEW_THREADS = """
import os, resource, sys
from pathlib import Path
import numpy.random, pyarrow.compute, pyarrow.parquet
import pgsweep.evidence.store
from pgsweep.errors import PgsweepError
from pgsweep.evidence.store import Evidence
from pgsweep.sizing.predict import predict
os.setgid(65533)
os.setuid(65533)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
print(len(Evidence.open(Path(sys.argv[1])).table("snapshots")["frame"]))
try:
    predict(Path(sys.argv[1]))
except PgsweepError as error:
    print(error.message, error.hint)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may become another user")
def test_a_limit_of_threads_is_not_taken_for_damage(tmp_path: Path) -> None:
    folder = evidence(tmp_path, "sql")
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path.is_relative_to("/tmp/"):
            path.chmod(path.stat().st_mode | 0o055)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", _FEW_THREADS, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows, said = done.stdout.splitlines()
    assert int(rows) == 12 * 64
    assert "no further thread could be started" in said and "remove" not in said


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ("cache", "pool_source"),
        ("warm-save", "pool_source"),
        ("hugepages", "status"),
        ("warm", "into"),
        ("budget", "verdict"),
    ],
)
def test_a_word_that_a_newer_pgsweep_may_use_is_shown(schema: str, field: str, tmp_path: Path) -> None:
    value = json.loads((SEEDS / "result" / f"{schema}.json").read_text())
    value[field] = "otherwise"
    (tmp_path / "r.json").write_text(json.dumps({**value, "skipped": None}))
    done = run("report", str(tmp_path / "r.json"), "-o", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        b'{"schema":"pgsweep.predict/1","source":"\xff"}',
        b'{"schema":"\xff"}',
        b'{"schema":"pgsweep.predict/1","source":"sql","observed":{"shared_buffers_bytes":1,"miss_ratio":0,'
        b'"accesses":1,"seconds":1},"points":[{"shared_buffers_bytes":-8192,"miss_ratio":0,"low":0,"high":0}],'
        b'"verdict":{"level":"reliable","reasons":[]}}',
        b'{"schema":"pgsweep.predict/1","source":"sql","observed":{"shared_buffers_bytes":1e18,"miss_ratio":0,'
        b'"accesses":1,"seconds":1},"points":[],"verdict":{"level":"reliable","reasons":[]}}',
        b'{"schema":"pgsweep.predict/1","source":"sql","observed":{"shared_buffers_bytes":8192,"miss_ratio":0,'
        b'"accesses":1,"seconds":1e999},"points":[],"verdict":{"level":"reliable","reasons":[]}}',
    ],
)
def test_a_result_that_nobody_made_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(text)
    with pytest.raises(UsageError):
        read_result(tmp_path / "r.json")


def test_a_result_without_end_is_not_read() -> None:
    with pytest.raises(PgsweepError):
        read_result(Path("/dev/zero"))


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


def test_a_drop_of_all_forks_is_no_damage() -> None:
    assert trouble_in("drops", "fork", np.array([0, 255])) is None
    assert trouble_in("accesses", "fork", np.array([0, 255])) is not None
