"""Every result survives JSON, and an HTML report carries its own."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.records.doctor import Runnable
from pgsweep.ui.kit.report import to_html
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Result
from pgsweep.ui.results import MODULES, from_json, read_result, to_csv, to_json, to_text, view_of
from tests.fix_advice import advice_result
from tests.fix_cli import run
from tests.fix_memory import budget_of, kernel_result, memory_result, seen
from tests.fix_results import (
    demo_result,
    doctor_result,
    lab_all_result,
    lab_compare_result,
    lab_list_result,
    lab_result,
    load_compare_result,
    load_result,
    predict_result,
    prove_result,
    record_result,
)
from tests.fuzz.targets import SEEDS

RESULTS: list[Result] = [predict_result(), demo_result(), prove_result(), record_result(), doctor_result()]
RESULTS += [memory_result(), budget_of(seen()), kernel_result(), load_result(), load_compare_result()]
RESULTS += [advice_result(), lab_result(), lab_result(experiment=True), lab_compare_result()]
RESULTS += [lab_list_result(), lab_all_result()]
IDS = ["predict", "demo", "prove", "record", "doctor", "memory", "budget", "kernel", "load", "load-compare"]
IDS += ["advise", "lab", "lab experiment", "lab compare", "lab list", "lab all"]


@pytest.mark.parametrize("result", RESULTS, ids=IDS)
def test_json_round_trip(result: Result) -> None:
    assert from_json(to_json(result).encode(), "x") == result


@pytest.mark.parametrize("result", RESULTS, ids=IDS)
def test_json_has_schema_first_and_ends_in_a_line(result: Result) -> None:
    text = to_json(result)
    assert text.startswith('{\n  "schema": "pgsweep.')
    assert text.endswith("}\n")


@pytest.mark.parametrize("result", RESULTS, ids=IDS)
def test_html_round_trip(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(to_html(result), encoding="utf-8")
    assert read_result(path) == result


@pytest.mark.parametrize("schema", sorted(MODULES))
def test_a_view_is_of_the_record_that_its_schema_names(schema: str) -> None:
    fields = {field.name: field.default for field in msgspec.structs.fields(view_of(schema).record)}
    assert fields["schema"] == schema
    assert fields["provenance"] is None


def test_showing_one_result_imports_no_other_view() -> None:
    code = "import sys; from pgsweep.ui.results import MODULES, view_of; view_of('pgsweep.kernel/1'); "
    code += "print([m for m in MODULES.values() if f'pgsweep.ui.views.{m}' in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['kernel']"


def test_fields_of_the_predict_schema() -> None:
    data = msgspec.json.decode(to_json(predict_result()))
    assert data["schema"] == "pgsweep.predict/1"
    assert set(data["observed"]) == {"shared_buffers_bytes", "miss_ratio", "accesses", "seconds"}
    assert set(data["points"][0]) == {"shared_buffers_bytes", "miss_ratio", "low", "high"}
    assert set(data["verdict"]) == {"level", "reasons"}


def test_later_fields_are_ignored() -> None:
    data = msgspec.json.decode(to_json(predict_result()))
    data["invented_later"] = 1
    assert from_json(msgspec.json.encode(data), "x") == predict_result()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not a result of pgsweep"),
        (b"not json", "not a result of pgsweep"),
        (b"{}", "does not know"),
        (b'{"schema": "pgsweep.predict/99"}', "does not know"),
        (b'{"schema": "pgsweep.predict/1"}', "damaged"),
    ],
)
def test_wrong_json_is_reported(text: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        from_json(text, "x.json")
    assert caught.value.hint


def test_wrong_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PgsweepError, match="cannot read"):
        read_result(tmp_path / "absent.json")
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><p>hello")
    with pytest.raises(UsageError, match="without a result"):
        read_result(page)


def test_csv_of_predict() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(predict_result()))))
    assert len(rows) == 6
    assert rows[0] == {
        "shared_buffers_bytes": "16777216",
        "predicted_miss_ratio": "0.25",
        "predicted_low": "0.24",
        "predicted_high": "0.26",
    }


def test_csv_of_demo_leaves_out_what_was_not_predicted() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(demo_result()))))
    assert [row["workload"] for row in rows] == ["mix <&> more"] * 3 + ["zipf"] * 3
    assert rows[0]["trace_miss_ratio"] == "0.251"
    assert rows[3]["trace_miss_ratio"] == ""


def test_csv_of_prove() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(prove_result()))))
    assert len(rows) == 3
    assert rows[1] == {
        "shared_buffers_bytes": "67108864",
        "measured_miss_ratio": "0.15",
        "simulated_miss_ratio": "0.1501220703125",
        "predicted_miss_ratio": "0.146",
        "predicted_low": "0.142",
        "predicted_high": "0.151",
        "accesses": "800000",
        "comparable": "True",
    }


def test_csv_of_record_has_one_row() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(record_result()))))
    assert len(rows) == 1
    assert rows[0]["accesses"] == "1234567"


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


def test_the_seeds_of_fuzzing_are_results_of_every_kind() -> None:
    """What a change of a record makes unreadable would be refused at its first field, and mutated in vain."""
    found = {read_result(path).schema for path in (SEEDS / "result").glob("*.json")}
    assert found == set(MODULES), "python -m tests.fuzz.make_seeds writes them anew"


def test_results_that_lack_a_part_are_shown_without_it() -> None:
    advice = advice_result()
    points = [msgspec.structs.replace(point, throughput_ratio=1.0) for point in advice.points]
    points[0] = msgspec.structs.replace(points[0], throughput_low=None)
    doctor = doctor_result()
    one = [Runnable(command="top", state="works", why="")]
    compared = msgspec.structs.replace(lab_compare_result(), differs={"machine": ["a laptop"]})
    for result in (
        msgspec.structs.replace(advice, points=points),
        msgspec.structs.replace(doctor, commands=one),
        compared,
    ):
        again = from_json(to_json(result).encode(), "x")
        assert to_text(again, Terminal(width=80))
        assert to_html(again)
    assert "machine: a laptop" in to_text(compared, Terminal(width=80))


def test_a_practice_that_was_never_timed_is_refused() -> None:
    result = load_compare_result()
    practices = [msgspec.structs.replace(result.practices[0], seconds=[])]
    damaged = msgspec.structs.replace(result, practices=practices)
    with pytest.raises(UsageError) as caught:
        from_json(to_json(damaged).encode(), "x")
    assert "a practice has no times" in f"{caught.value.message} {caught.value.cause}"
