"""Simulated cases, and the statistics of outcomes on data made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibration.bench import line, parse_lines
from benchmarks.calibration.cases import Case, Lengths, SizeTruth
from benchmarks.calibration.evaluate import Outcome, Point, covered, evaluate_simulated, ratio
from benchmarks.calibration.generator import draw
from benchmarks.calibration.statistics import describe, distance_name, pairs, passes_name, scans_name, summary
from benchmarks.calibration.stretches import Stretch
from benchmarks.calibration.synthetic import SyntheticRelation, SyntheticSpec, draw_synthetic, simulate
from pgsweep.evidence.store import Evidence

ROOT = Path(__file__).resolve().parent.parent


def _point(factor: float, truth: float, predicted: float, half_width: float, noise: float = 0.0) -> Point:
    return Point(
        factor=factor,
        truth=truth,
        predicted=predicted,
        low=predicted - half_width,
        high=predicted + half_width,
        truth_noise=noise,
    )


def _outcome(*points: Point, source: str = "sql", level: str = "reliable", passes: float = 30.0) -> Outcome:
    return Outcome(
        case="2-wheel",
        kind="real",
        source=source,
        level=level,
        reasons=(),
        points=points,
        today=0.001,
        passes=passes,
        scan_share=0.0,
        tags=("zipf",),
    )


def test_errors_coverage_and_width_by_hand() -> None:
    outcome = _outcome(
        _point(0.5, 0.20, 0.21, 0.02), _point(1, 0.10, 0.10, 0.01), _point(2, 0.05, 0.08, 0.02)
    )
    found = describe(pairs([outcome]))
    assert found["points"] == 3
    assert found["mean"] == pytest.approx(0.04 / 3, abs=1e-5)
    assert found["worst"] == pytest.approx(0.03)
    assert found["inside"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["width"] == pytest.approx(0.1 / 3, abs=1e-5)
    assert describe([])["mean"] is None


def test_bars_leave_out_what_is_refused_and_count_what_is_silent() -> None:
    outcomes = [
        _outcome(_point(1, 0.1, 0.102, 0.01)),
        _outcome(_point(1, 0.1, 0.9, 0.01), level="refused"),
        _outcome(_point(1, 0.1, 0.101, 0.01), level="refused"),
        _outcome(_point(1, 0.1, 0.15, 0.01, noise=0.02)),
        _outcome(_point(1, 0.1, 0.15, 0.06), level="rough"),
        _outcome(_point(1, 0.1, 0.5, 0.01), level="rough", passes=3.0),
        _outcome(_point(1, 0.1, 0.1, 0.01), source="trace", passes=3.0),
    ]
    found = summary(outcomes)
    assert found["sql_points"] == 3, "refused ones and those of few passes are not among them"
    assert found["sql_mean"] == pytest.approx((0.002 + 0.05 + 0.05) / 3, abs=1e-5)
    assert found["trace_points"] == 1
    assert found["peek_mean"] is None
    assert found["refused"] == 2
    assert found["refused_needlessly"] == pytest.approx(1 / 7, abs=1e-4)
    assert found["silent_failures"] == 1, "a rough one is not silent"
    assert found["silent_failures_beyond_noise"] == 0
    assert found["today_worst"] == 0.001
    assert found["strata"]["sql"]["passes"]["0 to 4"]["points"] == 1
    assert found["strata"]["sql"]["tags"]["zipf"]["points"] == 4


def test_strata_have_edges() -> None:
    assert [passes_name(p) for p in (0, 4, 10, 25, 100)] == [
        "0 to 4",
        "4 to 10",
        "10 to 25",
        "25 to 100",
        "100 and more",
    ]
    assert [distance_name(f) for f in (0.125, 0.35, 0.7, 1.0, 1.4, 8)] == [
        "0.125",
        "0.25",
        "0.5",
        "1",
        "1",
        "8",
    ]
    assert [scans_name(s) for s in (0, 0.01, 0.1, 0.4)] == [
        "below 0.01",
        "0.01 to 0.1",
        "0.1 to 0.4",
        "0.4 and more",
    ]


def test_an_outcome_survives_its_line() -> None:
    outcome = _outcome(_point(0.5, 0.2, 0.21, 0.02, noise=0.001), _point(1, 0.1, 0.1, 0.01))
    assert parse_lines([line(outcome)]) == [outcome]


def test_a_simulated_case_is_the_same_again(tmp_path: Path) -> None:
    spec = draw_synthetic(20)
    first, second = simulate(spec, tmp_path / "a"), simulate(spec, tmp_path / "b")
    assert first == second
    rows = [Evidence.open(tmp_path / name / "sql.evidence").table("snapshots") for name in "ab"]
    assert all(np.array_equal(rows[0][column], rows[1][column]) for column in rows[0])


def test_simulated_counters_agree_with_the_simulated_truth(tmp_path: Path) -> None:
    relation = SyntheticRelation(
        pages=3000, law="zipf", exponent=0.9, share=1.0, accesses=1.0, gap_seconds=0.0
    )
    spec = SyntheticSpec(seed=4, version=18, pool_blocks=512, passes=40, snapshots=30, relations=(relation,))
    simulated = simulate(spec, tmp_path)
    evidence = Evidence.open(tmp_path / "peek.evidence")
    counters = evidence.table("counters")

    def grown(scope: str, name: str) -> float:
        values = counters["value"][(counters["scope"] == scope) & (counters["name"] == name)]
        return float(values[-1] - values[0])

    read, hit = grown("database", "blks_read"), grown("database", "blks_hit")
    assert read / (read + hit) == pytest.approx(simulated.truth[512], abs=0.005)
    assert grown("relation", "blks_read") == read
    assert grown("pool", "hand_frames") / 512 == pytest.approx(simulated.passes)
    seen = evidence.table("snapshots")
    assert np.bincount(seen["snapshot"]).tolist() == [512] * 30
    ratios = list(simulated.truth.values())
    assert ratios == sorted(ratios, reverse=True)


def test_scans_are_counted_when_they_end(tmp_path: Path) -> None:
    relation = SyntheticRelation(
        pages=2000, law="uniform", exponent=1.0, share=1.0, accesses=1.0, gap_seconds=0.0
    )
    spec = SyntheticSpec(
        seed=6,
        version=18,
        pool_blocks=512,
        passes=60,
        snapshots=40,
        relations=(relation,),
        scanned_pages=1500,
        scan_share=0.4,
    )
    simulated = simulate(spec, tmp_path)
    assert simulated.scan_share == pytest.approx(0.4, abs=0.05)
    counters = Evidence.open(tmp_path / "sql.evidence").table("counters")
    own = (counters["object"] == "20001") & np.isin(counters["name"], ["blks_read", "blks_hit"])
    totals = np.bincount(counters["sample"][own], weights=counters["value"][own])
    assert np.all(totals % 1500 == 0), "only whole scans are counted"
    assert totals[-1] > totals[0]


@pytest.mark.slow
def test_a_plain_simulated_case_is_predicted_well() -> None:
    for outcome in evaluate_simulated(2):
        assert outcome.level != "failed", outcome.reasons
        assert outcome.worst < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "sizes"), [(2832, (0.125, 0.25, 0.5, 1.0)), (3482, (0.5, 1.0, 2.0, 4.0))])
def test_pages_that_come_in_order_bound_what_they_can_miss(seed: int, sizes: tuple[float, ...]) -> None:
    """A loop and a queue: refused as a whole before, though smaller pools miss what today's pool misses."""
    for outcome in evaluate_simulated(seed):
        assert outcome.level == "rough", outcome.reasons
        shown = {point.factor: point for point in outcome.points if point.shown}
        assert set(sizes) <= shown.keys()
        assert all(point.low - 0.0005 <= point.truth <= point.high + 0.0005 for point in shown.values())


def test_a_benchmark_gets_its_options(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/run.py", "calibration", "--", "--reevaluate", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["cases"] == 0


def test_the_truth_is_that_of_the_part_that_was_recorded() -> None:
    """Two stretches of ten seconds, of which a recording saw the first and half of the second."""
    stretches = tuple(
        Stretch(accesses=1_000, misses=misses, transactions=1, began_seconds=begun, seconds=10.0)
        for misses, begun in ((100, 50.0), (300, 60.0))
    )
    truth = SizeTruth(blocks=100, unused_blocks=0, before=stretches[0], stretches=stretches)
    case = Case(
        specification=draw(2),
        pace=1.0,
        lengths=Lengths(),
        server_version_num=180000,
        database_blocks=1,
        truth=(truth,),
        observed=truth,
        recorded_seconds={"trace": 49.0},
    )
    weights = covered(case, "trace", 16.0)
    assert weights == pytest.approx([1.0, 0.5])
    assert ratio(truth, weights) == pytest.approx(250 / 1_500)
    assert covered(case, "sql", 16.0) == [1.0, 1.0], "when it began is not known"
    assert ratio(truth) == pytest.approx(0.2)
