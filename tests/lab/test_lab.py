"""`pgsweep lab`: grids that are killed and resumed, results compared, experiments run at a tiny scale."""

from __future__ import annotations

import json
import signal
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.lab.catalog import ClaimOf, conclude, experiments, find_experiment, list_experiments
from pgsweep.lab.chosen import run_lab
from pgsweep.lab.compare import compare
from pgsweep.lab.grid import read_grid
from pgsweep.lab.protocol import CellPlan
from pgsweep.lab.runner import controls_of
from pgsweep.lab.statistics import median_interval, ratio_bounds, ratio_interval
from pgsweep.lab.steps import plan_of
from pgsweep.lab.store import opened_samples, read_samples
from pgsweep.pg.private.bindir import ServerBinaries
from pgsweep.records.lab import LabCell, LabPlot, LabResult, LabRun
from pgsweep.testbed.pgbench import find_pgbench
from pgsweep.testbed.steps import is_steady
from pgsweep.ui.kit.numbers import figure
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import to_text
from pgsweep.ui.views.lab_charts import plot_svg
from pgsweep.ui.views.lab_figures import value_text
from tests.fix_cli import launch, run
from tests.fix_disk import fill_disk
from tests.fix_process import wait_until
from tests.fix_results import lab_all_result, lab_cell, lab_header, lab_result

SHORTEST = '[[workload]]\nbuiltin = "select-only"\n'
GRID = """
repetitions = 1
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
CELLS = 2 * 3


def grid_in(folder: Path) -> Path:
    (folder / "count.sql").write_text("SELECT count(*) FROM pgbench_accounts;\n")
    (folder / "wrong.sql").write_text("SELECT absent FROM pgbench_accounts LIMIT 1;\n")
    path = folder / "small.toml"
    path.write_text(GRID)
    return path


def runs_in(path: Path) -> list[dict[str, Any]]:
    """Return the runs that are whole lines of a file of samples."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["run"] for line in lines if '"kind":"run"' in line]


@pytest.mark.slow
def test_a_grid_that_is_killed_and_interrupted_goes_on(tmp_path: Path) -> None:
    grid_in(tmp_path)
    samples = tmp_path / "small.samples.jsonl"
    words = ("lab", "run", "small.toml", "--json")
    killed = launch(*words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(runs_in(samples)) >= 1, 120)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with samples.open("a") as file:
        file.write('{"kind":"run","run":{"job":"wo')  # what a kill within a write leaves
    kept = read_samples(samples)[1]

    interrupted = launch(*words, cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(runs_in(samples)) > len(kept), 120)
    interrupted.send_signal(signal.SIGTERM)  # ends it as Ctrl-C does
    _, err = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130, err
    assert f"kept: {samples.name}" in err
    assert f"resumed: {len(kept)} of {CELLS} runs" in err
    kept = read_samples(samples)[1]
    assert len(kept) < CELLS

    done = run(*words, cwd=tmp_path, timeout_seconds=200)
    assert done.returncode == 0, done.stderr
    result = msgspec.json.decode(done.stdout, type=LabResult)
    assert f"resumed: {len(kept)} of {CELLS} runs" in done.stderr
    runs = runs_in(samples)
    assert len(runs) == len({(run["job"], run["repetition"]) for run in runs}) == CELLS
    assert [run["at"] for run in runs[: len(kept)]] == [run.at for run in kept], "these were not run again"

    assert len(result.cells) == CELLS
    for cell in result.cells:
        good = cell.factors["work_mem"] == "1MB" and cell.factors["workload"] != "wrong"
        assert len(cell.runs) == int(good), cell
        assert all(run > 0 for run in cell.runs)
        assert bool(cell.failures) != good
    said = " ".join(failure for cell in result.cells for failure in cell.failures)
    assert 'invalid value for parameter "work_mem": "nonsense"' in said
    assert 'column "absent" does not exist' in said
    # Of a few runs only, on a machine with other work; the bound for real grids is a twentieth.
    assert result.overhead_seconds < 2
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file has no `workload`"),
        ("workload = []", "line 1: `workload` is not a list in brackets of at least 1"),
        ("scales = 1\n" + SHORTEST, "line 1: there is no option `scales`"),
        ("[[workload]]\nseconds = 1", "one of builtin, script and sql"),
        (SHORTEST + 'sql = "x.sql"', "one of builtin, script and sql"),
        (SHORTEST + "seconds = 1\ntransactions = 1", "both seconds and transactions"),
        (SHORTEST + "transactions = 1", 'caches cannot be "warm"'),
        (SHORTEST + SHORTEST, "two workloads have one name"),
        ("clients = []\n" + SHORTEST, "line 1: `clients` is not a list in brackets of at least 1"),
        ("clients = [4, 0]\n" + SHORTEST, "`clients` is not a whole number of at least 1\ncause: it is 0"),
        ("repetitions = 2.5\n" + SHORTEST, "`repetitions` is not a whole number\ncause: it is 2.5"),
        ("warm_up_seconds = 0\n" + SHORTEST, "not a number above 0\ncause: it is 0"),
        (SHORTEST + "seconds = 0", "line 3: `workload.seconds` is not a whole number of at least 1"),
        (SHORTEST + "secs = 1", "line 3: there is no option `secs`"),
        (SHORTEST + "[settings]\nwork_mem = []", "a list of settings is empty"),
        ('caches = ["hot"]\n' + SHORTEST, '`caches` is none of: cold, prewarmed, warm\ncause: it is "hot"'),
    ],
)
def test_what_is_no_grid_is_refused_with_the_reason(text: str, words: str, tmp_path: Path) -> None:
    """Which key, what was given, and what is allowed."""
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"grid\.toml`") as refused:
        read_grid(path)
    assert words in f"{refused.value.message}\ncause: {refused.value.cause}"


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


def test_a_full_disk_keeps_the_runs_that_are_written(small_disk: Path) -> None:
    path = small_disk / "samples.jsonl"
    run = LabRun(job="a", repetition=1, at="2024-05-06T07:08:09Z", values={"a": 1.0})
    large = msgspec.structs.replace(run, repetition=2, raw={"a": [1.0] * 1200})
    with (
        pytest.raises(PgsweepError, match="cannot write the samples: No space left"),
        opened_samples(path, lab_header()) as samples,
    ):
        samples.add(run)
        fill_disk(small_disk)
        samples.add(large)
    (small_disk / "ballast").unlink()
    assert read_samples(path)[1] == [run]
    with opened_samples(path, lab_header()) as samples:
        samples.add(large)
    assert [each.repetition for each in read_samples(path)[1]] == [1, 2]


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
    """Of medians of ten runs: nominally 95%; a bootstrap of so few is a little narrower."""
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


def made_of(cell: CellPlan) -> LabCell:
    return msgspec.structs.replace(
        lab_cell(cell.key, [1.0, 2.0]), factors=dict(cell.factors), unit=cell.unit, published=cell.published
    )


def test_every_experiment_is_whole() -> None:
    assert [each.number for each in experiments().values()] == list(range(1, 11))
    for each in experiments().values():
        keys = [cell.key for cell in each.cells]
        plan = plan_of(each, each.scale)
        assert {cell.key for cell in plan.cells} == set(keys)
        assert {cell.job for cell in plan.cells} == set(plan.jobs)
        for cell in each.cell:
            assert set(cell.published_by) <= {", ".join(values) for values in product(*cell.each.values())}
        for plot in each.plot:
            assert plot_svg(plot, [made_of(cell) for cell in each.cells]), (each.name, plot.title)
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
    claim = ClaimOf(text="it is so", over="a", under="b", at_least=0.5, otherwise="it is another machine")
    experiment = msgspec.structs.replace(experiment, claim=[claim])
    cells: list[LabCell] = [lab_cell("a", over), lab_cell("b", [1.0, 1.0])]
    found = conclude(experiment, 1, cells)
    assert found.verdict == found.claims[0].verdict == verdict
    [small] = conclude(experiment, 1000, cells).claims
    assert small.verdict == "cannot tell"
    # What was not measured has a reason of its own.
    assert ("too small" in small.reason) == bool(over)
    noise = lab_all_result().results[0].controls
    [told] = conclude(experiment, 1, cells, noise).claims
    if verdict == "does not hold here":
        assert told.reason == "it is another machine"
    if len(over) == 2 and verdict == "cannot tell":
        assert "the machine is noisy (its control runs, disk, differ by 110%)" in told.reason
        assert told.reason.endswith("it is another machine")


def test_all_results_together_count_the_conclusions() -> None:
    text = to_text(lab_all_result(), Terminal(width=100))
    assert "1 of 1 conclusions hold here" in text
    assert "skipped: no memory cgroup can be made here" in text
    assert "machine noise, disk: 9 control runs" in text


def test_one_run_apart_from_the_others_does_not_decide_from_five_runs_on() -> None:
    under = [100.0, 101.0, 99.0, 100.0, 100.0, 102.0, 98.0]
    over = [80.0, 81.0, 79.0, 80.0, 82.0, 78.0, 150.0]
    found = ratio_bounds(over, under)
    assert found is not None
    assert 0.7 < found[0] < 0.8 < found[1] < 1
    assert ratio_bounds(over[-2:], under) == (78 / 102, 150 / 98)
    assert ratio_bounds([0.0], None) == (0.0, 0.0)
    assert ratio_bounds([3.0] * 5, None) == (3.0, 3.0)
    assert ratio_bounds([1.0], [0.0]) is ratio_bounds([], None) is None


@pytest.mark.parametrize("arguments", [(), ("residency", "--all")])
def test_either_a_name_or_all_is_wanted(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run("lab", "run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "name an experiment or a grid, or give --all" in done.stderr
    assert list(tmp_path.iterdir()) == []


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


def test_control_runs_become_the_noise_of_the_machine() -> None:
    one = LabRun(job="a", repetition=1, at="", control_disk_seconds=0.1)
    runs = [msgspec.structs.replace(one, control_processor_seconds=0.03 + 0.001 * n) for n in range(11)]
    processor, disk = controls_of([*runs, LabRun(job="a", repetition=12, at="")])
    assert (processor.what, processor.runs) == ("processor", 11)
    found = (processor.low_seconds, processor.median_seconds, processor.high_seconds)
    assert found == pytest.approx((0.031, 0.035, 0.039))
    assert disk.spread_ratio == 0
    assert controls_of(runs[:2]) == []
    before = msgspec.structs.replace(lab_result(), controls=[processor])
    slower = msgspec.structs.replace(processor, median_seconds=0.07, low_seconds=0.06, high_seconds=0.08)
    after = msgspec.structs.replace(lab_result(), controls=[slower])
    assert any("took 2.00 times" in line for line in compare(before, after).warnings)
    assert not any("control" in line for line in compare(before, before).warnings)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (8e-05, "seconds", "80 µs"),
        (0.000123456, "seconds", "123 µs"),
        (0.0123456, "seconds", "12.3 ms"),
        (12.345, "seconds", "12.3 s"),
        (0.0, "bytes", "0"),
        (None, "bytes", "–"),
        (142657.0, "transactions/s", "142 657"),
        (3.0, "pages", "3"),
    ],
)
def test_small_and_large_figures_are_written_without_exponents(
    value: float | None, unit: str, text: str
) -> None:
    assert value_text(value, unit) == text


def test_figures_have_three_digits() -> None:
    assert [figure(value) for value in (1.5, 0.012345, 99.95, 1e-7)] == ["1.5", "0.0123", "100", "0.0000001"]


@pytest.mark.parametrize("kind", ["boxes", "bars", "lines"])
def test_a_picture_of_anything_has_only_finite_numbers(kind: str) -> None:
    cells = [
        msgspec.structs.replace(lab_cell(f"{size} {on}", runs), factors={"size": size, "on": on})
        for size, on, runs in (
            ("4MB", "off", [1.0, 1.1, 0.9]),
            ("14GB", "on", [1e6]),
            ("1GB", "on", [0.0, 3.0]),
            ("1GB", "off", []),
        )
    ]
    for log in (False, True):
        plot = LabPlot(kind=kind, title="it <&>", x="size", colour="on", log=log)  # type: ignore[arg-type]
        drawn = plot_svg(plot, cells)
        assert drawn.count("<g>") == (2 if log else 3)
        assert "it &lt;&amp;&gt;" in drawn
        assert "nan" not in drawn
        assert "inf" not in drawn
    assert plot_svg(LabPlot(kind="bars", title="t", x="absent"), cells) == ""
    odd = [msgspec.structs.replace(cells[0], factors={"size": "²"})]
    assert plot_svg(LabPlot(kind="lines", title="t", x="size"), odd)
