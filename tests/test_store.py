from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgsweep.errors import EvidenceError
from pgsweep.evidence import writer as writer_module
from pgsweep.evidence.store import TABLES, Evidence, EvidenceMeta, EvidenceWriter

META = EvidenceMeta(source="trace", pgsweep_version="0.1.0", server_version_num=180006, database="app")


def accesses(count: int, *, begin: int = 0) -> dict[str, Any]:
    """Return rows that do not compress well, so that parts have a size to speak of."""
    rng = np.random.default_rng(begin)
    columns: dict[str, Any] = {name: np.zeros(count, dtype=kind) for name, kind in TABLES["accesses"].items()}
    columns["time_ns"] = np.arange(begin, begin + count, dtype=np.uint64) * np.uint64(1000)
    columns["block"] = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    columns["rel"] = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    return columns


def counters(count: int) -> dict[str, Any]:
    return {
        "sample": np.arange(count),
        "seconds": np.arange(count) * 0.5,
        "scope": ["database"] * count,
        "object": ["größe \"x'; drop"] * count,
        "name": ["blks_hit"] * count,
        "value": np.arange(count) * 2.0,
    }


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, META) as writer:
        first, second = accesses(1000), accesses(500, begin=1000)
        writer.append("accesses", first)
        writer.append("accesses", second)
        writer.append("counters", counters(3))
        writer.close(msgspec.structs.replace(META, seconds=2.0, ended_by="time", warnings=["a word"]))
    evidence = Evidence.open(path)
    assert evidence.complete
    assert evidence.warnings == ["a word"]
    assert evidence.meta.seconds == 2.0
    assert evidence.meta.ended_by == "time"
    assert evidence.has("accesses")
    assert not evidence.has("snapshots")
    table = evidence.table("accesses")
    for name, kind in TABLES["accesses"].items():
        assert table[name].dtype == np.dtype(kind)
        assert np.array_equal(table[name], np.concatenate([first[name], second[name]]))
    assert list(evidence.table("counters", ["object"])["object"]) == ["größe \"x'; drop"] * 3
    assert len(evidence.table("snapshots")["frame"]) == 0
    assert writer.bytes_written == sum(part.stat().st_size for part in path.glob("*/*.parquet"))


def test_callers_may_reuse_their_arrays(tmp_path: Path) -> None:
    columns = accesses(10)
    with EvidenceWriter(tmp_path / "a.evidence", META) as writer:
        writer.append("accesses", columns)
        columns["block"][:] = 7
    assert not np.any(Evidence.open(tmp_path / "a.evidence").table("accesses")["block"] == 7)


def test_parts_bound_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "PART_BYTES", 100_000)
    with EvidenceWriter(tmp_path / "a.evidence", META) as writer:
        writer.append("accesses", accesses(20_000))
        assert writer._waiting_rows["accesses"] * 36 < 100_000
    evidence = Evidence.open(tmp_path / "a.evidence")
    sizes = [len(part["block"]) for part in evidence.parts("accesses", ["block"])]
    assert sum(sizes) == 20_000
    assert max(sizes) * 36 <= 100_000


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 300), min_size=1, max_size=6))
def test_any_division_into_appends_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("cuts") / "a.evidence"
    whole = accesses(sum(cuts))
    position = 0
    with EvidenceWriter(path, META) as writer:
        for size in cuts:
            writer.append("accesses", {name: whole[name][position : position + size] for name in whole})
            writer.flush()
            position += size
    table = Evidence.open(path).table("accesses")
    assert all(np.array_equal(table[name], whole[name]) for name in whole)


def test_a_small_table_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, META) as writer:
        writer.append("accesses", accesses(1))
        for count in (3, 2):
            writer.replace("counters", counters(count))
            assert Evidence.open(path).rows("counters") == count
    assert [part.name for part in (path / "counters").iterdir()] == ["part-00000.parquet"]


def test_wrong_columns_are_an_error_of_the_caller(tmp_path: Path) -> None:
    with EvidenceWriter(tmp_path / "a.evidence", META) as writer:
        columns = accesses(2)
        columns["pid"] = columns["pid"][:1]
        with pytest.raises(ValueError, match="differ in length"):
            writer.append("accesses", columns)
        del columns["pid"]
        with pytest.raises(ValueError, match="has columns"):
            writer.append("accesses", columns)


def test_nothing_but_evidence_is_replaced(tmp_path: Path) -> None:
    other = tmp_path / "work"
    other.mkdir()
    (other / "thesis.txt").write_text("years")
    for overwrite in (False, True):
        with pytest.raises(EvidenceError, match="left untouched"):
            EvidenceWriter(other, META, overwrite=overwrite)
    assert (other / "thesis.txt").read_text() == "years"
    with pytest.raises(EvidenceError, match="is not evidence"):
        EvidenceWriter(other / "thesis.txt", META, overwrite=True)

    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, META) as writer:
        writer.append("accesses", accesses(5))
    with pytest.raises(EvidenceError, match="already holds evidence"):
        EvidenceWriter(path, META)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(EvidenceError, match="left untouched"):
        EvidenceWriter(path, META, overwrite=True)
    (path / "notes.txt").unlink()
    with EvidenceWriter(path, META, overwrite=True) as writer:
        writer.append("counters", counters(1))
    assert not Evidence.open(path).has("accesses")


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with (
        EvidenceWriter(path, META),
        pytest.raises(EvidenceError, match="being written by another"),
    ):
        EvidenceWriter(path, META, overwrite=True)


def test_an_error_before_the_first_row_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with pytest.raises(RuntimeError), EvidenceWriter(path, META):
        raise RuntimeError
    assert not path.exists()


def test_an_error_later_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with pytest.raises(KeyboardInterrupt), EvidenceWriter(path, META) as writer:
        writer.append("accesses", accesses(100))
        raise KeyboardInterrupt
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == 100
    assert not evidence.complete
    assert evidence.meta.ended_by == "interrupt"
    assert evidence.meta.seconds == pytest.approx(99e-6)
    assert "cut short" in evidence.warnings[0]


@pytest.mark.parametrize("keep", [0.99, 0.5, 0.0])
def test_a_truncated_part_ends_the_evidence(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, META) as writer:
        for number in range(3):
            writer.append("accesses", accesses(1000, begin=number * 1000))
            writer.flush()
    part = path / "accesses" / "part-00001.parquet"
    os.truncate(part, int(part.stat().st_size * keep))
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == 1000
    assert not evidence.complete
    assert "part-00001.parquet is cut short or damaged; 1 of 3 parts" in evidence.warnings[0]
    part.unlink()
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == 1000
    assert "part-00001.parquet is missing" in evidence.warnings[0]


def test_damage_inside_a_part_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, META) as writer:
        writer.append("accesses", accesses(5000))
    part = path / "accesses" / "part-00000.parquet"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 0xFF
    part.write_bytes(data)
    with pytest.raises(EvidenceError, match="is damaged") as caught:
        Evidence.open(path).table("accesses")
    assert caught.value.hint is not None


def test_what_is_no_evidence_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with pytest.raises(EvidenceError, match="does not exist"):
        Evidence.open(path)
    path.write_text("x")
    with pytest.raises(EvidenceError, match="is a file"):
        Evidence.open(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(EvidenceError, match="is not evidence") as caught:
        Evidence.open(path)
    assert caught.value.cause == "it has no meta.json"
    meta = path / "meta.json"
    for text in ("", "{", "[]", '"x"', "{}", '{"schema": "pgsweep.evidence/x"}', "\x00"):
        meta.write_text(text)
        with pytest.raises(EvidenceError, match="is broken"):
            Evidence.open(path)
    meta.write_text('{"schema": "pgsweep.evidence/1", "source": "trace", "seconds": "long"}')
    with pytest.raises(EvidenceError, match="is broken"):
        Evidence.open(path)
    meta.write_text('{"schema": "other/1"}')
    with pytest.raises(EvidenceError, match="is not evidence"):
        Evidence.open(path)
    meta.write_text('{"schema": "pgsweep.evidence/2", "pgsweep_version": "9.1"}')
    with pytest.raises(EvidenceError, match=r"newer pgsweep \(9\.1\)") as caught:
        Evidence.open(path)
    assert "upgrade" in str(caught.value.hint)


def test_additions_of_a_later_version_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, META) as writer:
        writer.append("counters", counters(2))
    meta = json.loads((path / "meta.json").read_text())
    meta["weather"] = "fine"
    (path / "meta.json").write_text(json.dumps(meta))
    (path / "peeks").mkdir()
    assert Evidence.open(path).complete


def run_writer(path: Path, body: str) -> subprocess.Popen[str]:
    """Start a process of its own that writes evidence."""
    script = f"""
        import sys, time, os, resource
        from pathlib import Path
        from tests.test_store import META, accesses
        from pgsweep.errors import EvidenceError
        from pgsweep.evidence.store import EvidenceWriter
        path = Path({str(path)!r})
        """
    source = textwrap.dedent(script) + textwrap.dedent(body)
    root = Path(__file__).parent.parent
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=root)


def test_kill_of_the_writer_keeps_complete_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    process = run_writer(
        path,
        """
        writer = EvidenceWriter(path, META)
        for number in range(100000):
            writer.append("accesses", accesses(2000, begin=number * 2000))
            writer.flush()
            print(number, flush=True)
        """,
    )
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if int(line) >= 20:
                break
        process.send_signal(signal.SIGKILL)
    evidence = Evidence.open(path)
    assert not evidence.complete
    assert "cut short" in evidence.warnings[0]
    rows = evidence.table("accesses", ["time_ns"])["time_ns"]
    assert len(rows) >= 20 * 2000
    assert len(rows) % 2000 == 0
    assert np.array_equal(rows, np.arange(len(rows), dtype=np.uint64) * np.uint64(1000))
    assert evidence.meta.seconds == pytest.approx(len(rows) * 1e-6, rel=0.01)
    # The dead writer's lock is gone with it.
    with EvidenceWriter(path, META, overwrite=True) as writer:
        writer.append("accesses", accesses(1))
    assert Evidence.open(path).complete


def test_a_full_disk_is_told_and_keeps_what_was_complete(small_disk: Path) -> None:
    path = small_disk / "a.evidence"
    written = 0
    with EvidenceWriter(path, META) as writer:
        with pytest.raises(EvidenceError) as caught:
            for number in range(1000):
                writer.append("accesses", accesses(20_000, begin=number * 20_000))
                writer.flush()
                written += 20_000
        with pytest.raises(EvidenceError):
            writer.append("accesses", accesses(1))
        writer.close(msgspec.structs.replace(META, ended_by="disk"))
    assert caught.value.cause == "the file system is full"
    assert "free some space" in str(caught.value.hint)
    assert "readable" in str(caught.value.hint)
    assert written >= 20_000
    assert not list(path.rglob("*.tmp"))
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == written
    assert not evidence.complete
    assert evidence.meta.ended_by == "disk"


def test_a_disk_full_from_the_start_leaves_nothing(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space") as full, (small_disk / "ballast").open("wb", 0) as ballast:
        while True:
            ballast.write(b"x" * 4096)
    assert full.value.errno == errno.ENOSPC
    with pytest.raises(EvidenceError) as caught:
        EvidenceWriter(small_disk / "a.evidence", META)
    assert caught.value.cause == "the file system is full"
    assert not (small_disk / "a.evidence").exists()


def test_a_limit_on_file_size_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    process = run_writer(
        path,
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            with EvidenceWriter(path, META) as writer:
                writer.append("accesses", accesses(3000))
                writer.flush()
                writer.append("accesses", accesses(50_000, begin=3000))
        except EvidenceError as error:
            print(error.cause, "|", error.hint)
        """,
    )
    output, _ = process.communicate(timeout=60)
    assert "may not grow further" in output
    assert "readable" in output
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == 3000
    assert not evidence.complete


def test_a_folder_without_permission_is_told(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError) as caught:
        EvidenceWriter(tmp_path / "missing" / "a.evidence", META)
    assert caught.value.hint is not None
    with pytest.raises(EvidenceError) as caught:
        EvidenceWriter(Path("/proc/a.evidence"), META)
    assert caught.value.hint is not None


def test_pyarrow_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, pgsweep.evidence.store; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_memory_stays_bounded_over_a_long_recording(tmp_path: Path) -> None:
    process = run_writer(
        tmp_path / "a.evidence",
        """
        with EvidenceWriter(path, META) as writer:
            rows = accesses(200_000)
            for number in range(12):
                writer.append("accesses", rows)
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(60):
                writer.append("accesses", rows)
        print(early, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        """,
    )
    output, _ = process.communicate(timeout=120)
    early_kb, late_kb = (int(word) for word in output.split())
    assert late_kb - early_kb < 100_000


def test_the_documentation_names_every_column_and_its_example_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "concepts" / "evidence.md").read_text()
    for table, columns in TABLES.items():
        assert f"`{table}`" in text
        for column in columns:
            assert f"`{column}`" in text, f"{table}.{column}"
    for field in EvidenceMeta.__struct_fields__:
        assert f"`{field}`" in text, field
    with EvidenceWriter(tmp_path / "shop.evidence", META) as writer:
        writer.append(
            "snapshots", {name: np.zeros(5, dtype=kind) for name, kind in TABLES["snapshots"].items()}
        )
    example = text.split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "5"
