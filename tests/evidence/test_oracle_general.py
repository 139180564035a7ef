from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import libcachesim
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pgsweep.errors import EvidenceError, NotEvidence
from pgsweep.evidence import oracle_general
from pgsweep.evidence.oracle_export import export_oracle_general
from pgsweep.evidence.oracle_general import (
    RECORD,
    read_object_names,
    read_oracle_general,
)
from pgsweep.evidence.store import TABLES, EvidenceMeta, EvidenceWriter
from pgsweep.sizing.predict import predict
from tests.fix_pool import kinds_of

META = EvidenceMeta(source="trace", block_size_bytes=8192)


def trace_of(objects: NDArray[Any], *, size: int = 8192) -> NDArray[np.void]:
    records = np.zeros(len(objects), dtype=RECORD)
    records["object"] = objects
    records["time"] = np.arange(len(objects)) // 1000
    records["size"] = size
    last: dict[int, int] = {}
    for position in range(len(objects) - 1, -1, -1):
        records["next"][position] = last.get(int(objects[position]), -1)
        last[int(objects[position])] = position
    return records


def write_evidence(path: Path, count: int, *, parts: int = 3) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(11)
    columns: dict[str, Any] = {name: np.zeros(count, dtype=kind) for name, kind in TABLES["accesses"].items()}
    columns["time_ns"] = np.arange(count, dtype=np.uint64) * np.uint64(2_500_000)
    columns["spc"] = np.where(rng.random(count) < 0.1, 1664, 1663)
    columns["db"] = np.where(columns["spc"] == 1664, 0, 5)
    columns["rel"] = 16384 + (rng.zipf(1.5, count) % 7) * 1_000_003
    columns["fork"] = np.where(rng.random(count) < 0.05, 2, 0)
    columns["block"] = rng.zipf(1.2, count) % 700 + np.where(rng.random(count) < 0.01, 2**32 - 800, 0)
    with EvidenceWriter(path, META) as writer:
        for piece in np.array_split(np.arange(count), parts):
            writer.append("accesses", {name: column[piece] for name, column in columns.items()})
            writer.flush()
        writer.append(
            "relations",
            {
                name: ["public" if name == "schema" else 'a, "b"\nc'] if kind == "str" else [0]
                for name, kind in TABLES["relations"].items()
            }
            | {"spc": [1663], "db": [5], "rel": [16384]},
        )
    return columns


def test_an_export_leads_back_to_the_pages(tmp_path: Path) -> None:
    columns = write_evidence(tmp_path / "a.evidence", 5000)
    output = tmp_path / "a.oracleGeneral"
    result = export_oracle_general(tmp_path / "a.evidence", output)
    assert (result.accesses, result.bytes_written) == (5000, output.stat().st_size)
    records = np.fromfile(output, dtype=RECORD)
    expected = trace_of(records["object"])
    assert np.array_equal(records["next"], expected["next"])
    assert np.array_equal(records["time"], columns["time_ns"] // 10**9)
    assert set(records["size"]) == {8192}
    names = read_object_names(Path(result.mapping_path), records["object"])
    for column in ("spc", "db", "rel", "fork", "block"):
        assert np.array_equal(names[column], columns[column])
    with Path(result.mapping_path).open(newline="") as file:
        rows = {(row["rel"], row["fork"], row["spc"]): row["name"] for row in csv.DictReader(file)}
    assert rows["16384", "0", "1663"] == 'a, "b"\nc'

    trace = read_oracle_general(output)
    seen: dict[tuple[int, ...], int] = {}
    pages = zip(*(columns[name].tolist() for name in ("spc", "db", "rel", "fork", "block")), strict=True)
    assert trace.pages.tolist() == [seen.setdefault(page, len(seen)) for page in pages]
    assert trace.objects == result.objects == len(seen)
    assert trace.seconds == 12.0
    assert trace.block_size_bytes == 8192
    assert trace.warnings == []


def test_libcachesim_reads_our_export(tmp_path: Path) -> None:
    write_evidence(tmp_path / "a.evidence", 20_000)
    output = tmp_path / "a.oracleGeneral"
    export_oracle_general(tmp_path / "a.evidence", output)
    reader = libcachesim.TraceReader(
        str(output),
        libcachesim.TraceType.ORACLE_GENERAL_TRACE,
        libcachesim.ReaderInitParam(ignore_obj_size=True),
    )
    assert reader.get_num_of_req() == 20_000
    records = np.fromfile(output, dtype=RECORD)
    for request, record in zip(reader, records[:100], strict=False):
        assert (request.obj_id, request.clock_time) == (record["object"], record["time"])
    pages = read_oracle_general(output).pages
    for size in (50, 400):
        lru, _ = libcachesim.LRU(cache_size=size).process_trace(reader)
        assert lru == pytest.approx(lru_misses(pages, size) / len(pages), abs=1e-9)
        # Belady's choice rests on the next accesses being exact.
        belady, _ = libcachesim.Belady(cache_size=size).process_trace(reader)
        assert belady == pytest.approx(belady_misses(records["next"], pages, size) / len(pages), abs=1e-9)
        assert belady < lru


def lru_misses(pages: NDArray[np.uint32], size: int) -> int:
    cache: dict[int, None] = {}
    misses = 0
    for page in pages.tolist():
        if page in cache:
            del cache[page]
        else:
            misses += 1
            if len(cache) == size:
                del cache[next(iter(cache))]
        cache[page] = None
    return misses


def belady_misses(following: NDArray[np.int64], pages: NDArray[np.uint32], size: int) -> int:
    cache: dict[int, int] = {}
    misses = 0
    for page, later in zip(pages.tolist(), following.tolist(), strict=True):
        if page not in cache:
            misses += 1
            if len(cache) == size:
                del cache[max(cache, key=cache.__getitem__)]
        cache[page] = later if later >= 0 else 1 << 60
    return misses


@settings(max_examples=30)
@given(objects=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=200), data=st.data())
def test_any_objects_are_numbered_by_first_appearance(
    tmp_path_factory: pytest.TempPathFactory, objects: list[int], data: st.DataObject
) -> None:
    objects += data.draw(st.lists(st.sampled_from(objects), max_size=200))
    path = tmp_path_factory.mktemp("any") / "a.oracleGeneral"
    trace_of(np.array(objects, dtype=np.uint64)).tofile(path)
    trace = read_oracle_general(path)
    numbers: dict[int, int] = {}
    assert trace.pages.tolist() == [numbers.setdefault(name, len(numbers)) for name in objects]
    assert trace.objects == len(numbers)


def test_pieces_and_compression_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_general, "CHUNK_RECORDS", 101)
    records = trace_of(np.random.default_rng(2).integers(0, 300, 5000))
    plain, packed = tmp_path / "a.oracleGeneral", tmp_path / "a.oracleGeneral.zst"
    records.tofile(plain)
    with pa.CompressedOutputStream(str(packed), "zstd") as out:
        out.write(records.tobytes())
    assert np.array_equal(read_oracle_general(plain).pages, read_oracle_general(packed).pages)
    packed.write_bytes(packed.read_bytes()[:-200])
    with pytest.raises(EvidenceError):
        read_oracle_general(packed)


def test_troubles_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.oracleGeneral"
    with pytest.raises(EvidenceError, match="does not exist"):
        read_oracle_general(path)
    path.write_bytes(b"")
    with pytest.raises(EvidenceError, match="has no accesses"):
        read_oracle_general(path)
    data = trace_of(np.arange(1000)).tobytes()
    path.write_bytes(data[:-7])
    with pytest.raises(EvidenceError, match="cut short") as caught:
        read_oracle_general(path)
    assert "truncate -s -17" in str(caught.value.hint)
    path.write_bytes(data[:7])
    with pytest.raises(EvidenceError, match="cut short"):
        read_oracle_general(path)
    path.write_bytes(b"time,object,size,next\n12" * 1000)
    with pytest.raises(EvidenceError, match="not an oracleGeneral trace"):
        read_oracle_general(path)
    path.write_bytes(np.random.default_rng(1).bytes(24 * 1000))
    with pytest.raises(EvidenceError, match="not an oracleGeneral trace"):
        read_oracle_general(path)
    with pytest.raises(EvidenceError):
        read_oracle_general(tmp_path)
    mixed = trace_of(np.arange(10))
    mixed["size"][3] = 77
    mixed["time"][-1] = 0
    mixed["time"][0] = 9
    mixed.tofile(path)
    trace = read_oracle_general(path)
    assert len(trace.warnings) == 2
    assert trace.block_size_bytes == 8192


@pytest.mark.parametrize("name", ["trace-tenants-17", "trace-standby-18", "trace-drops-18", "trace-grows-16"])
def test_of_what_is_written_a_prediction_counts_what_the_database_does(name: str, tmp_path: Path) -> None:
    evidence = Path(__file__).parents[1] / "answers" / "evidence" / name
    written = export_oracle_general(evidence, tmp_path / "a.oracleGeneral")
    counted = predict(evidence, sizes_bytes=[1 << 20]).observed.accesses
    assert written.counted == counted <= written.accesses


def test_troubles_of_export_are_reported(tmp_path: Path) -> None:
    evidence, output = tmp_path / "a.evidence", tmp_path / "a.oracleGeneral"
    with EvidenceWriter(evidence, EvidenceMeta(source="sql")):
        pass
    with pytest.raises(NotEvidence, match="has no trace"):
        export_oracle_general(evidence, output)
    with EvidenceWriter(tmp_path / "idle.evidence", EvidenceMeta(source="trace")):
        pass
    with pytest.raises(EvidenceError, match="has no accesses"):
        export_oracle_general(tmp_path / "idle.evidence", output)
    write_evidence(tmp_path / "b.evidence", 100)
    output.write_text("mine")
    with pytest.raises(EvidenceError, match="exists already"):
        export_oracle_general(tmp_path / "b.evidence", output)
    assert output.read_text() == "mine"
    with pytest.raises(EvidenceError, match="cannot write"):
        export_oracle_general(tmp_path / "b.evidence", tmp_path / "no" / "where")
    result = export_oracle_general(tmp_path / "b.evidence", output, overwrite=True)
    with pytest.raises(EvidenceError, match="no relation 77"):
        read_object_names(Path(result.mapping_path), np.array([77 << 32], dtype=np.uint64))
    with pytest.raises(EvidenceError, match="cannot read"):
        read_object_names(output, np.array([77 << 32], dtype=np.uint64))


def test_a_full_disk_leaves_no_half_a_trace(tmp_path: Path) -> None:
    write_evidence(tmp_path / "a.evidence", 20_000)
    code = f"""
        import resource
        from pathlib import Path
        from pgsweep.errors import EvidenceError
        from pgsweep.evidence.oracle_export import export_oracle_general
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        folder = Path({str(tmp_path)!r})
        try:
            export_oracle_general(folder / "a.evidence", folder / "a.oracleGeneral")
        except EvidenceError as error:
            print(error.cause)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert "may not grow further" in done.stdout
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.evidence"]


def test_a_long_trace_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.oracleGeneral"
    records = np.zeros(1_000_000, dtype=RECORD)
    records["next"] = -1
    rng = np.random.default_rng(3)
    with path.open("wb") as out:
        for _ in range(10):
            records["object"] = rng.integers(0, 100_000, len(records))
            out.write(records.tobytes())
    code = f"""
        import resource
        from pathlib import Path
        from pgsweep.evidence.oracle_general import read_oracle_general
        import pyarrow
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len(read_oracle_general(Path({str(path)!r})).pages) == 10_000_000
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    # The file has 240 MB; the pages alone take 40 MB, twice that while they are put together.
    assert int(done.stdout) < 220_000


def write_server_evidence(path: Path) -> None:
    """Evidence of a server of 64 blocks: two relations, of which a fifth of the blocks is visited once."""
    rng = np.random.default_rng(4)
    count = 20_000
    hot = rng.random(count) < 0.9
    block = np.where(hot, rng.zipf(1.3, count) % 100, rng.integers(0, 5000, count))
    columns: dict[str, Any] = {name: np.zeros(count, dtype=kind) for name, kind in TABLES["accesses"].items()}
    columns["time_ns"] = np.arange(count, dtype=np.uint64) * np.uint64(500_000)
    columns["spc"][:] = 1663
    columns["db"] = np.where(rng.random(count) < 0.1, 6, 5).astype(np.uint32)
    columns["rel"][:] = 16384
    columns["block"] = block.astype(np.uint32)
    columns["kind"] = kinds_of(block + 5000 * (columns["db"] == 6), 64, version=15)
    meta = EvidenceMeta(
        source="trace",
        seconds=10.0,
        server_version_num=150000,
        shared_buffers_blocks=64,
        database="shop",
        database_oid=5,
    )
    relations: dict[str, Any] = {
        name: ["orders" if kind == "str" else 0] for name, kind in TABLES["relations"].items()
    }
    relations |= {"spc": [1663], "db": [5], "rel": [16384], "blocks_begin": [5000], "blocks_end": [5000]}
    with EvidenceWriter(path, meta) as writer:
        writer.append("accesses", columns)
        writer.append("relations", relations)
        writer.close(meta)


def test_predict_comes_to_the_same_from_an_export_as_from_the_evidence(tmp_path: Path) -> None:
    write_server_evidence(tmp_path / "a.evidence")
    output = tmp_path / "a.oracleGeneral"
    result = export_oracle_general(tmp_path / "a.evidence", output)
    sizes = [256 * 1024, 1024**2, 8 * 1024**2]
    wanted = predict(tmp_path / "a.evidence", sizes_bytes=sizes)
    found = predict(output, sizes_bytes=sizes)
    assert found.points == wanted.points
    assert found.observed == wanted.observed
    assert found.verdict == wanted.verdict
    (tmp_path / "a.oracleGeneral.zst").write_bytes(pa.compress(output.read_bytes(), "zstd", asbytes=True))
    assert predict(tmp_path / "a.oracleGeneral.zst", sizes_bytes=sizes).points == wanted.points
    # What the format cannot hold is not much.
    folder = Path(result.start_path)
    assert (
        sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < output.stat().st_size / 3
    )

    output.write_bytes(output.read_bytes()[: -24 * 100])
    with pytest.raises(EvidenceError, match="do not belong together"):
        predict(output, sizes_bytes=sizes)


def test_first_accesses_of_a_trace_without_a_beginning_are_shown_apart(tmp_path: Path) -> None:
    write_server_evidence(tmp_path / "a.evidence")
    output = tmp_path / "a.oracleGeneral"
    result = export_oracle_general(tmp_path / "a.evidence", output)
    warm = predict(output, sizes_bytes=[64 * 1024**2])
    shutil.rmtree(result.start_path)
    cold = predict(output, sizes_bytes=[64 * 1024**2])
    first = result.objects / result.accesses
    assert cold.source == "import"
    assert cold.points[0].miss_ratio == pytest.approx(first)
    assert cold.points[0].low == pytest.approx(0, abs=0.001), "a pool that holds everything need not miss"
    assert warm.points[0].miss_ratio < first / 2
    assert cold.verdict.reasons[0].code == "first-accesses"
