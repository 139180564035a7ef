"""The benchmark of real jobs: its figures by hand, and loads that say all that a case needs."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.calibration.evaluate import Outcome, Point
from benchmarks.calibration.scripts import pgbench_script, setup_sql
from benchmarks.jobs.bench import inside, summary
from benchmarks.jobs.loads import LOADS


def point(**values: float) -> Point:
    return msgspec.structs.replace(
        Point(factor=2.0, truth=0.10, predicted=0.11, low=0.105, high=0.115, truth_noise=0.0), **values
    )


def outcome(level: str, *points: Point, source: str = "sql") -> Outcome:
    return Outcome(
        case=f"{level}-{source}",
        kind="real",
        source=source,
        level=level,
        reasons=(),
        points=points,
        today=0.0,
        passes=50.0,
        scan_share=0.0,
        tags=(),
    )


def test_the_noise_of_the_truth_is_taken_out() -> None:
    assert not inside(point())
    assert inside(point(truth_noise=0.006))
    assert inside(point(truth=0.105))


def test_figures_by_hand() -> None:
    found = summary(
        [
            outcome("rough", point(truth=0.112), point(factor=4.0), point(factor=1.0, truth=0.5)),
            outcome("refused", point()),
            outcome("reliable", point(truth=0.15), source="trace"),
        ]
    )
    assert found["answered_sql"] == 0.5
    assert found["inside_sql"] == 0.5, "today's size and what is refused do not count"
    assert found["width_sql"] == pytest.approx(0.01)
    assert found["sql_mean"] == pytest.approx(0.006)
    assert found["sql_worst"] == pytest.approx(0.01)
    assert found["answered_trace"] == found["reliable_trace"] == 1
    # The trace is off by .04, and today's size is far outside of its interval.
    assert found["silent_failures"] == 2


@pytest.mark.parametrize("name", LOADS)
def test_a_load_has_a_seed_of_its_own_and_scripts_for_pgbench(name: str) -> None:
    spec = LOADS[name]()
    assert [other for other in LOADS if LOADS[other]().seed == spec.seed] == [name]
    assert any(statement.startswith(("CREATE TABLE", "DO")) for statement in setup_sql(spec))
    for stream in spec.streams:
        for script in stream.scripts:
            assert pgbench_script(spec, script).rstrip().endswith(";")
            assert pgbench_script(spec, script, spaced=True).startswith("\\sleep :gap ms")
    assert 1.0 in spec.size_factors
