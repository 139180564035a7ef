"""How many sessions copy: measured while the first pieces are copied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsweep.load import copying, way
from pgsweep.load.loading import load_files, plan_load
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from tests.fix_load import ask, facts_of, leftovers, outcome_of, trouble_database

ROWS = 60_000


@pytest.fixture
def conninfo(wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with trouble_database(wheel18) as found:
        yield found


@pytest.mark.parametrize(("gain", "jobs"), [(0.0, 2), (1e9, 1)], ids=["faster", "not faster"])
def test_as_many_sessions_go_on_as_are_faster(
    conninfo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gain: float, jobs: int
) -> None:
    monkeypatch.setattr(way, "_MEASURED_FROM_BYTES", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(copying, "_MEASURED_BYTES", 0)
    monkeypatch.setattr(copying, "_GAIN", gain)
    path = tmp_path / "rows.csv"
    path.write_text("id,a,name\n" + "".join(f"{n},1,note {n}\n" for n in range(ROWS)))
    given = LoadOptions(indexes="drop", piece_bytes=8192)
    planned = {
        choice.what: choice.choice for choice in plan_load(conninfo, [str(path)], "t", given).plan.choices
    }
    assert planned["sessions"] == "1 or 2, measured while the first pieces are copied"
    before = facts_of(conninfo, "t")
    result = load_files(conninfo, [str(path)], "t", given)
    assert (outcome_of(result).jobs, result.plan.jobs) == (jobs, jobs)
    [choice] = [choice for choice in result.plan.choices if choice.what == "sessions"]
    assert (choice.choice, "in a second, 2" in choice.reason) == (str(jobs), True)
    assert ask(conninfo, "SELECT count(*), count(DISTINCT id) FROM t") == [(ROWS, ROWS)]
    assert facts_of(conninfo, "t") == before
    assert leftovers(conninfo) == []
