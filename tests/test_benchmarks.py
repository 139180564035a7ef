"""The benchmark runner finds benchmarks, refuses unknown names, and samples carry their provenance."""

from __future__ import annotations

import ast
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.advise.bench import HERE
from benchmarks.advise.cases import SIZES_BYTES, Samples, sizes_of, stand_in
from benchmarks.advise.judge import summary, truths
from benchmarks.advise.tables import page
from benchmarks.replay.traces import zipf_trace
from benchmarks.restore.bench import against_autoprewarm, early_hits
from benchmarks.run import names
from benchmarks.samples import keep
from tools.figures import (
    ARMS,
    NOT_PREDICTED,
    REFUSED,
    cold_transactions,
    errors,
    pages,
    restore_runs,
    samples_of,
    transactions,
)

ROOT = Path(__file__).resolve().parent.parent


def test_every_benchmark_that_a_page_names_is_found() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"\bNAME=([a-z_]{2,})", page.read_text("utf-8"))}
    assert named >= {"replay", "look", "tracing", "restore"}
    assert named <= set(names())


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


@pytest.mark.parametrize("folder", [HERE, HERE / "second_host"], ids=["first host", "second host"])
def test_the_page_of_results_of_advise_is_that_of_its_samples(folder: Path) -> None:
    samples = Samples(folder / "samples.jsonl")
    predictions = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    figures = summary(samples, predictions)
    assert page(samples, predictions, figures) == (folder / "results.md").read_text()
    assert {one["case"] for one in predictions} == set(samples.cases())
    assert all(set(truths(samples, case)) >= set(SIZES_BYTES) for case in samples.cases())


def test_sizes_that_are_asked_for_are_measured_once() -> None:
    near, far = SIZES_BYTES[2] + 8192, 100 << 20
    advice = [{"advised_bytes": near, "rules": {"one": far, "two": None, "three": 1 << 40, "four": far}}]
    assert sizes_of(advice) == sorted({*SIZES_BYTES, far})
    assert stand_in(near, SIZES_BYTES) == SIZES_BYTES[2]
    assert stand_in(far, SIZES_BYTES) is None


KEPT = sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/samples.json"))


@pytest.mark.parametrize("name", KEPT)
def test_kept_samples_have_the_summary_that_their_benchmark_prints(name: str) -> None:
    content = samples_of(name)
    assert content["samples"]
    assert content["machine"]["processors"] >= 1
    assert {"at", "command", "versions"} <= content.keys()
    written = _literal_keys(ROOT / "benchmarks" / name / "bench.py")
    assert written <= content["summary"].keys()
    assert content["summary"]


def _literal_keys(bench: Path) -> set[str]:
    """Return the keys of a benchmark's summary that stand in it as a literal, not those that are computed."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(bench.read_text("utf-8"))):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if not any(isinstance(target, ast.Name) and target.id == "summary" for target in node.targets):
            continue
        found |= {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    return found


def test_literal_keys_of_a_summary_are_found() -> None:
    assert "error_max" in _literal_keys(ROOT / "benchmarks/page_cache/bench.py")
    assert "steady_tps" in _literal_keys(ROOT / "benchmarks/restore/bench.py")


def test_the_figures_of_the_pages_are_those_of_the_samples() -> None:
    """`python -m tools.figures` writes them."""
    for path, text in pages().items():
        assert path.read_text("utf-8") == text, f"{path.name} differs: run `python -m tools.figures`"


def test_summaries_are_those_of_their_samples() -> None:
    demo = samples_of("demo")
    for workload in demo["samples"]["workloads"]:
        summary = demo["summary"][workload["name"]]
        assert summary == {name: workload[name] for name in summary}
        for source in ("trace", "snapshots"):
            pairs = [(row[source], row["measured_miss_ratio"]) for row in workload["rows"]]
            off = [abs(one["miss_ratio"] - truth) for one, truth in pairs if one is not None]
            # A prediction that is refused has no numbers.
            assert (errors(summary, source) == REFUSED) == (not off)
            if off:
                assert summary[f"{source}_max_abs_error"] == pytest.approx(max(off))
                assert summary[f"{source}_mean_abs_error"] == pytest.approx(statistics.fmean(off))
    restored, runs = samples_of("restore")["summary"], restore_runs()
    for arm in ARMS:
        prefix = "" if arm == "restore" else f"{arm}_"
        hits = statistics.median([early_hits(run) for run in runs[arm]])
        assert restored[f"{prefix}early_hit_ratio"] == pytest.approx(hits, abs=1e-3)
        done = statistics.median(transactions(runs[arm], 5.0))
        assert restored[f"{prefix}first_transactions"] == pytest.approx(done, abs=1e-2)


def test_the_sentences_beside_the_figures_of_restoring_hold() -> None:
    """docs/guides/move-the-heat.md compares the arms in words."""
    runs = restore_runs()
    early = [statistics.median(transactions(runs[arm], 5.0)) for arm in ARMS]
    assert cold_transactions(runs, 5.0) > max(early)
    later = [statistics.median(transactions(runs[arm], 10.0)) for arm in ("restore", "waiting")]
    assert cold_transactions(runs, 10.0) < min(later)
    guide = " ".join((ROOT / "docs/guides/move-the-heat.md").read_text("utf-8").split())
    every = [run for arm in runs.values() for run in arm]
    for arm, words in (
        ("restore", "many transactions with `warm restore`"),
        ("waiting", "many with `--next"),
    ):
        ratios = against_autoprewarm(every, arm)
        median = statistics.median(ratios)
        assert samples_of("restore")["summary"][f"{arm}_by_autoprewarm"] == median > 1
        assert f"{median:.2f} times as {words}" in guide
        assert f"({ratios[0]:.2f} to {ratios[-1]:.2f})" in guide
    hits = {arm: statistics.median([early_hits(run) for run in runs[arm]]) for arm in ARMS}
    assert max(ARMS, key=hits.__getitem__) == "autoprewarm"
    ends = {arm: statistics.median([run.warm_seconds or 0.0 for run in runs[arm]]) for arm in ARMS}
    assert min(ARMS, key=ends.__getitem__) == "autoprewarm"
    for seconds in (5.0, 30.0):
        found = [transactions(runs[arm], seconds) for arm in ARMS]
        assert max(min(one) for one in found) < min(max(one) for one in found), "they do not overlap any more"


def test_sizes_that_are_not_predicted_are_explained() -> None:
    page = (ROOT / "docs/measured.md").read_text("utf-8")
    assert ("A size is *not predicted* if" in page) == (f"| {NOT_PREDICTED} |" in page)
