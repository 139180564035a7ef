"""The benchmark runner finds benchmarks, refuses unknown names, and samples carry their provenance."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.advise.bench import PREDICTIONS, RESULTS, SAMPLES
from benchmarks.advise.cases import SIZES_BYTES, Samples, sizes_of, stand_in
from benchmarks.advise.judge import summary, truths
from benchmarks.advise.tables import page
from benchmarks.replay.traces import zipf_trace
from benchmarks.run import names
from benchmarks.samples import keep

ROOT = Path(__file__).resolve().parent.parent


def test_every_benchmark_is_found() -> None:
    folders = {path.parent.name for path in (ROOT / "benchmarks").glob("*/bench.py")}
    assert set(names()) == folders
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"\bNAME=([a-z_]{2,})", page.read_text("utf-8"))}
    assert named >= {"replay", "look", "tracing", "restore"}
    assert named <= folders


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, "benchmarks/run.py", "replai"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "no such benchmark: replai; there are:" in ended.stderr
    assert "replay" in ended.stderr


def test_samples_tell_machine_versions_and_command(tmp_path: Path) -> None:
    keep(tmp_path, {"ratio": 2.0}, [1, 2, 3], packages=("libcachesim", "no-such-package"))
    kept = json.loads((tmp_path / "samples.json").read_text())
    assert kept["samples"] == [1, 2, 3]
    assert kept["summary"] == {"ratio": 2.0}
    assert kept["machine"]["processors"] >= 1
    assert kept["versions"]["libcachesim"] == "0.3.5"
    assert kept["versions"]["no-such-package"] == "absent"
    assert kept["command"].split()[1:] == " ".join(sys.orig_argv[1:]).split()


def test_zipf_traces_are_skewed_and_repeatable() -> None:
    trace = zipf_trace(50_000, 1000)
    assert np.array_equal(trace, zipf_trace(50_000, 1000))
    counts = np.sort(np.bincount(trace, minlength=1000))[::-1]
    assert 1.8 < counts[0] / counts[1] < 2.2


def test_the_page_of_results_of_advise_is_that_of_its_samples() -> None:
    samples = Samples(SAMPLES)
    predictions = [json.loads(line) for line in PREDICTIONS.read_text().splitlines()]
    figures = summary(samples, predictions)
    assert page(samples, predictions, figures) == RESULTS.read_text()
    assert {one["case"] for one in predictions} == set(samples.cases())
    assert all(set(truths(samples, case)) >= set(SIZES_BYTES) for case in samples.cases())


def test_sizes_that_are_asked_for_are_measured_once() -> None:
    near, far = SIZES_BYTES[2] + 8192, 100 << 20
    advice = [{"advised_bytes": near, "rules": {"one": far, "two": None, "three": 1 << 40, "four": far}}]
    assert sizes_of(advice) == sorted({*SIZES_BYTES, far})
    assert stand_in(near, SIZES_BYTES) == SIZES_BYTES[2]
    assert stand_in(far, SIZES_BYTES) is None
