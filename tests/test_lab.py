"""`pgsweep lab`: grids that are killed and resumed, results compared, experiments run at a tiny scale."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.lab.catalog import ClaimOf, conclude, experiments, find_experiment, list_experiments
from pgsweep.lab.compare import compare
from pgsweep.lab.grid import read_grid
from pgsweep.lab.plan import Steps
from pgsweep.lab.run import run_lab
from pgsweep.lab.runner import Order, run_plan
from pgsweep.lab.statistics import median_interval, ratio_interval
from pgsweep.lab.store import opened_samples, read_samples
from pgsweep.pg.bindir import ServerBinaries
from pgsweep.records.lab import LabCell, LabResult, LabRun
from pgsweep.testbed.pgbench import find_pgbench
from pgsweep.testbed.steps import is_steady
from tests.fix_cli import PGSWEEP, run
from tests.fix_process import needs_root, wait_until
from tests.fix_results import lab_cell, lab_header, lab_result

SHORTEST = '[[workload]]\nbuiltin = "select-only"\n'
GRID = """
repetitions = 2
scale = 1
clients = [2]
caches = ["warm"]
warm_up_seconds = 0.5
seed = 7
[settings]
work_mem = ["1MB", "nonsense"]
autovacuum = "off"
[[workload]]
builtin = "select-only"
seconds = 1
[[workload]]
sql = "count.sql"
[[workload]]
script = "wrong.sql"
seconds = 1
"""
CELLS, REPETITIONS = 2 * 3, 2


def grid_in(folder: Path) -> Path:
    (folder / "count.sql").write_text("SELECT count(*) FROM pgbench_accounts;\n")
    (folder / "wrong.sql").write_text("SELECT absent FROM pgbench_accounts LIMIT 1;\n")
    path = folder / "small.toml"
    path.write_text(GRID)
    return path


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_a_grid_that_is_killed_goes_on(tmp_path: Path) -> None:
    grid_in(tmp_path)
    samples = tmp_path / "small.samples.jsonl"
    command = [PGSWEEP, "lab", "run", "small.toml", "--json"]
    killed = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_until(lambda: len(lines_of(samples)) >= 3, 120)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with samples.open("a") as file:
        file.write('{"kind":"run","run":{"job":"wo')  # what a kill within a write leaves
    kept = read_samples(samples)[1]
    assert len(kept) >= 2

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True)
    result = msgspec.json.decode(done.stdout, type=LabResult)
    assert f"resumed: {len(kept)} of {CELLS * REPETITIONS} runs" in done.stderr
    runs = [json.loads(line)["run"] for line in lines_of(samples) if '"kind":"run"' in line]
    assert len(runs) == len({(run["job"], run["repetition"]) for run in runs}) == CELLS * REPETITIONS
    assert [run["at"] for run in runs[: len(kept)]] == [run.at for run in kept], "these were not run again"

    assert len(result.cells) == CELLS
    for cell in result.cells:
        good = cell.factors["work_mem"] == "1MB" and cell.factors["workload"] != "wrong"
        assert len(cell.runs) == (REPETITIONS if good else 0), cell
        assert all(run > 0 for run in cell.runs)
        assert bool(cell.failures) != good
    said = " ".join(failure for cell in result.cells for failure in cell.failures)
    assert 'invalid value for parameter "work_mem": "nonsense"' in said
    assert 'column "absent" does not exist' in said
    # Cells of a second, on a machine with other work: the bound for real grids is a twentieth.
    assert result.overhead_ratio is not None
    assert result.overhead_ratio < 0.25
    header, _ = read_samples(samples)
    assert header.seed == 7
    assert header.command == "pgsweep lab run small.toml --json"
    assert header.server_version == result.server_version

    again = run("lab", "run", "small.toml", "-o", "small.html", cwd=tmp_path)
    assert again.returncode == 0
    assert "nothing is run again" in again.stderr
    assert "failed: the private PostgreSQL did not start" in again.stdout
    (tmp_path / "count.sql").write_text("SELECT 1")
    with pytest.raises(UsageError, match="holds the runs of another plan"):
        run_lab(str(tmp_path / "small.toml"), samples)
    compared = run("lab", "compare", "small.html", "small.html", cwd=tmp_path)
    assert compared.returncode == 0
    assert "0 of 2 cells differ" in compared.stdout
    assert "fewer than 5 runs" in compared.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "job", "scale"),
    [
        ("residency", "residency", 500),
        ("footprint", "seq scan", 1000),
        pytest.param("prewarm-scan", "fits", 500, marks=needs_root),
    ],
)
def test_the_steps_of_an_experiment_give_all_its_figures(
    name: str, job: str, scale: float, tmp_path: Path
) -> None:
    """At a scale that nothing can be concluded from, one of its jobs."""
    whole = find_experiment(name)
    part = msgspec.structs.replace(whole, cell=[cell for cell in whole.cell if cell.job in ("", job)])
    result = run_plan(Steps(part, scale), Order(tmp_path / "samples.jsonl", repetitions=1))
    assert [cell.key for cell in result.cells if not cell.runs or cell.failures] == []
    found = {cell.key: cell.runs[0] for cell in result.cells}
    if name == "residency":
        assert found["table after: in shared_buffers"] > 0.95 > found["table before: in shared_buffers"]
        assert found["table after: in both"] > 0.9
    elif name == "footprint":
        assert found["seq scan: into the page cache"] > found["seq scan: into shared_buffers"] > 0
    else:
        assert found["fits, cold: blocks read"] == found["fits, pool warm: blocks hit"] > 0


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "missing required field `workload`"),
        ("workload = []", "it has no [[workload]]"),
        ("scales = 1\n" + SHORTEST, "unknown field `scales`"),
        ("[[workload]]\nseconds = 1", "one of builtin, script and sql"),
        (SHORTEST + 'sql = "x.sql"', "one of builtin, script and sql"),
        (SHORTEST + "seconds = 1\ntransactions = 1", "both seconds and transactions"),
        (SHORTEST + "transactions = 1", 'caches cannot be "warm"'),
        (SHORTEST + SHORTEST, "two workloads have one name"),
        ("clients = []\n" + SHORTEST, "clients has no number"),
        (SHORTEST + "[settings]\nwork_mem = []", "a list of settings is empty"),
        ('caches = ["hot"]\n' + SHORTEST, "Invalid enum value 'hot'"),
    ],
)
def test_what_is_no_grid_is_refused_with_the_reason(text: str, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="is no grid") as refused:
        read_grid(path)
    assert cause in str(refused.value.cause)


def test_a_grid_has_every_combination_once(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(
        'caches = ["cold", "prewarmed"]\nclients = [1, 16]\n'
        + SHORTEST
        + '[settings]\nshared_buffers = ["1MB", "2MB"]\nhuge_pages = [true, false]\njit = false\n'
    )
    grid, _ = read_grid(path)
    assert len(set(grid.jobs)) == len(grid.jobs) == 2 * 2 * 2 * 2
    assert grid.settings == {"jit": "off"}
    assert {cell.factors["huge_pages"] for cell in grid.cells} == {"on", "off"}
    assert "shared_buffers=1MB; huge_pages=on; workload=select-only; caches=cold; clients=16" in grid.jobs


def test_the_file_of_samples_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    header = lab_header()
    for number in (1, 2):
        with opened_samples(path, header) as samples:
            assert len(samples.runs) == number - 1
            samples.add(LabRun(job="a", repetition=number, at="2024-05-06T07:08:09Z", values={"a": 1.0}))
            with pytest.raises(PgsweepError, match="another run is writing"), opened_samples(path, header):
                pass
        with path.open("ab") as file:
            file.write(b'{"kind":"run"')
    found, runs = read_samples(path)
    assert found == header
    assert [run.repetition for run in runs] == [1, 2]
    with (
        pytest.raises(UsageError, match="another plan"),
        opened_samples(path, msgspec.structs.replace(header, plan="other")),
    ):
        pass


@pytest.mark.parametrize("text", ["", "x", "x\n", '{"kind":"run"}\n', "[]\n"])
def test_a_file_of_something_else_stays_as_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    if not text:
        with opened_samples(path, lab_header()) as samples:
            assert samples.runs == []
        return
    with pytest.raises(UsageError, match="holds no samples"), opened_samples(path, lab_header()):
        pass
    assert path.read_text() == text


def test_intervals_cover_the_truth() -> None:
    """Of medians of ten runs: nominally 95 %; a bootstrap of so few is a little narrower."""
    draws = np.random.default_rng(5)
    inside = 0
    for _ in range(100):
        interval = ratio_interval(
            draws.lognormal(0.2, 0.1, 10).tolist(), draws.lognormal(0, 0.1, 10).tolist()
        )
        assert interval is not None
        inside += interval[0] <= np.exp(0.2) <= interval[1]
    assert inside >= 86
    assert median_interval([1.0, 2.0, 3.0, 4.0]) is None
    assert median_interval([2.0] * 5) == (2.0, 2.0)


def test_compare_shows_what_differs() -> None:
    before = lab_result({"a": [100, 101, 99, 100, 102], "b": [50, 55, 45, 52, 48], "c": [7]})
    after = lab_result({"a": [120, 121, 119, 120, 118], "b": [51, 47, 54, 49, 50], "d": [7]})
    found = compare(before, msgspec.structs.replace(after, settings={"jit": "off"}))
    assert [(cell.key, cell.verdict) for cell in found.cells] == [
        ("a", "higher"),
        ("b", "no difference shown"),
    ]
    first = found.cells[0]
    assert first.low is not None
    assert first.high is not None
    assert first.low <= first.ratio == 1.2 <= first.high
    assert found.differs == {"jit": ["default", "off"]}
    assert found.left_out == ["only in first: c", "only in second: d"]
    noisy = compare(msgspec.structs.replace(before, noise_ratio=0.3), after)
    assert any("first is noisy" in line for line in noisy.warnings)


def test_compare_refuses_what_was_measured_otherwise() -> None:
    result = lab_result({"a": [1.0] * 5})
    with pytest.raises(UsageError, match="cannot be compared") as refused:
        compare(result, msgspec.structs.replace(result, conditions={"scale": "10"}))
    assert "scale: 1 and 10" in str(refused.value.cause)
    with pytest.raises(UsageError, match="cannot be compared"):
        compare(result, lab_result({"b": [1.0] * 5}))


def test_every_experiment_is_whole() -> None:
    assert list(experiments()) == ["residency", "tpcb", "prewarm-scan", "footprint"]
    for each in experiments().values():
        keys = [cell.key for cell in each.cell]
        assert len(set(keys)) == len(keys)
        for claim in each.claim:
            assert claim.over in keys
            assert not claim.under or claim.under in keys
            assert (claim.at_least, claim.at_most) != (None, None)
        assert each.scale <= each.largest_scale
    listed = list_experiments().experiments
    assert all(each.state == "runs" or each.why for each in listed)


@pytest.mark.parametrize(
    ("over", "verdict"),
    [
        ([0.9, 1.1], "holds"),
        ([0.3, 0.4], "does not hold here"),
        ([0.4, 0.9], "cannot tell"),
        ([], "cannot tell"),
        ([0.9], "cannot tell"),  # one run of a time
    ],
)
def test_a_conclusion_holds_where_all_runs_say_so(over: list[float], verdict: str) -> None:
    experiment = find_experiment("residency")
    claim = ClaimOf(text="it is so", over="a", under="b", at_least=0.5)
    experiment = msgspec.structs.replace(experiment, claim=[claim])
    cells: list[LabCell] = [lab_cell("a", over), lab_cell("b", [1.0, 1.0])]
    found = conclude(experiment, 1, cells)
    assert found.verdict == found.claims[0].verdict == verdict
    assert conclude(experiment, 1000, cells).verdict == "cannot tell"


def test_an_unknown_experiment_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean `residency`"):
        find_experiment("residence")


def test_steady_is_when_the_last_values_are_like_those_before() -> None:
    assert not is_steady([100.0] * 5)
    assert is_steady([1.0, 100, 101, 99, 100, 102, 98])
    assert not is_steady([10.0, 20, 30, 40, 50, 60])


def test_a_missing_pgbench_is_said_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsweep.testbed.pgbench.installed_servers", list)
    with pytest.raises(PgsweepError, match="there is no pgbench") as missing:
        find_pgbench(ServerBinaries(tmp_path, 150018, "15.18"))
    assert "apt-get install postgresql-15" in str(missing.value.hint)


@pytest.mark.slow
def test_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    grid_in(tmp_path)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        [PGSWEEP, "lab", "run", "small.toml"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    samples = tmp_path / "small.samples.jsonl"
    assert wait_until(lambda: len(lines_of(samples)) >= 2, 120)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"kept: {samples.name}" in err
    assert len(read_samples(samples)[1]) >= 1
