"""`pgsweep record --budget`: a recording takes no more of the processors than it may."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsweep.errors import MissingAbility
from pgsweep.evidence.store import Evidence
from pgsweep.evidence.trace import record_trace
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from tests.fix_cli import run
from tests.fix_process import needs_root
from tests.fix_shop import shop_under_load


@pytest.fixture(scope="module")
def loaded(wheel18: Cluster) -> Iterator[str]:
    with shop_under_load(wheel18) as conninfo:
        yield conninfo


@pytest.mark.parametrize("source", ["sql", pytest.param("peek", marks=needs_root)])
def test_snapshots_come_as_seldom_as_the_budget_asks_for(loaded: str, source: str, tmp_path: Path) -> None:
    taken, snapshots = {}, {}
    for budget in ("0.5%", "50%"):
        output = tmp_path / f"{budget}.evidence"
        options = ["--source", source, "--for", "15s", "--budget", budget, "-o", str(output)]
        done = run("record", loaded, *options, "--json")
        assert done.returncode == 0, done.stderr
        assert f"budget: {float(budget[:-1]):.2f}%" in done.stderr
        result, overhead = json.loads(done.stdout), Evidence.open(output).meta.overhead
        assert overhead["budget_share"] == float(budget[:-1]) / 100
        taken[budget], snapshots[budget] = overhead["taken_share"], result["snapshots"]
        exceeded = taken[budget] > overhead["budget_share"]
        assert exceeded == any("the budget was" in warning for warning in result["warnings"])
    assert snapshots["0.5%"] < snapshots["50%"]
    # What is done once, at both ends, is a large part of so short a time.
    assert taken["0.5%"] < 0.01
    assert taken["0.5%"] < taken["50%"] < 0.5


@needs_root
def test_a_trace_is_taken_where_it_is_expected_to_fit(loaded: str, tmp_path: Path) -> None:
    wide = run("record", loaded, "--budget", "90%", "--for", "3s", "-o", "w.evidence", "--json", cwd=tmp_path)
    assert wide.returncode == 0, wide.stderr
    assert json.loads(wide.stdout)["source"] == "trace"
    narrow = run(
        "record", loaded, "--budget", "0.1%", "--for", "3s", "-o", "n.evidence", "--json", cwd=tmp_path
    )
    assert narrow.returncode == 0, narrow.stderr
    result = json.loads(narrow.stdout)
    assert result["source"] == "peek"
    assert "trace: a trace is expected to take" in result["passed_over"][0]
    with pytest.raises(MissingAbility, match="a trace is expected to take"):
        record_trace(loaded, tmp_path / "x.evidence", seconds=3, budget=0.0001)
    assert not (tmp_path / "x.evidence").exists()
    with pytest.raises(MissingAbility, match=r"would hold \d"):
        record_trace(loaded, tmp_path / "x.evidence", seconds=1e6, budget=0.9)


@needs_root
def test_a_trace_that_takes_more_is_ended(wheel18: Cluster, tmp_path: Path) -> None:
    """It was expected to fit; what this process works besides, from the first event on, is too much.

    On a machine that is busy with twenty others it gets a tenth of a processor, of two.
    """
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(1000))

    class Busy(NullListener):
        def note(self, text: str) -> None:
            if text.startswith("probes are live"):
                threading.Thread(target=work).start()

    try:
        result = record_trace(
            wheel18.conninfo(), tmp_path / "x.evidence", seconds=120, budget=0.05, progress=Busy()
        )
    finally:
        over.set()
    assert result.ended_by == "budget"
    assert 5 <= result.seconds < 100
    assert any("the budget was 5.00%" in warning for warning in result.warnings)
    meta = Evidence.open(tmp_path / "x.evidence").meta
    assert meta.complete and meta.overhead["taken_share"] > 0.05
