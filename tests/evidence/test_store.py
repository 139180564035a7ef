from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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
from tests.fix_process import NOBODY, needs_root
from tests.fix_written import META, accesses


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


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_numbers_that_no_server_has_are_refused(tmp_path: Path) -> None:
    with EvidenceWriter(tmp_path / "x.evidence", META) as writer:
        times: dict[str, list[float]] = {"snapshot": [0], "used_frames": [2**80]}
        times |= {"begin_seconds": [0.0], "end_seconds": [0.0]}
        with pytest.raises(EvidenceError, match="too large for the table snapshot_times"):
            writer.append("snapshot_times", times)


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


def test_what_is_no_evidence_is_reported(tmp_path: Path) -> None:
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


def test_pyarrow_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, pgsweep.evidence.store; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_documentation_names_every_column_and_its_example_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "concepts" / "evidence.md").read_text()
    for table, columns in TABLES.items():
        assert f"`{table}`" in text
        for column in columns:
            assert f"`{column}`" in text, f"{table}.{column}"
    for field in EvidenceMeta.__struct_fields__:
        assert f"`{field}`" in text, field
    with EvidenceWriter(tmp_path / "shop.evidence", META) as writer:
        writer.append(
            "snapshots", {name: np.ones(5, dtype=kind) for name, kind in TABLES["snapshots"].items()}
        )
    example = text.split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "5"


@needs_root
def test_a_folder_that_another_user_made_is_not_written_to(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "shop.evidence", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for planted in ((), ("counters",)):
        folder.mkdir()
        os.chown(folder, *NOBODY)
        for name in planted:
            (folder / name).symlink_to(elsewhere)
        with pytest.raises(EvidenceError, match="belongs to another user"):
            EvidenceWriter(folder, EvidenceMeta(source="sql"), overwrite=True)
        assert sorted(path.name for path in folder.iterdir()) == sorted(planted)
        shutil.rmtree(folder)
    folder.mkdir()
    EvidenceWriter(folder, EvidenceMeta(source="sql")).close()
