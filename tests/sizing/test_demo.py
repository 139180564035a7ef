"""The demo, small: every step on a real server, and nothing left behind wherever it is interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pgsweep.errors import ClusterError, MissingAbility
from pgsweep.evidence.store import Evidence
from pgsweep.host.processes import processes_in
from pgsweep.records.proof import DemoResult
from pgsweep.sizing import demo
from pgsweep.sizing.demo import DEFAULT_PLAN, EVERYTHING, LARGE_PLAN, run_demo
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.predict import judge
from tests.fix_demo import BRIEF, MIB, SMALL
from tests.fix_process import wait_until

CHILD = """
import os
import sys
from pathlib import Path
from pgsweep.sizing.demo import run_demo
from tests.fix_demo import BRIEF
from tests.fix_initdb import share_templates

class Listener:
    def stage(self, title, total_seconds=None):
        print(title, flush=True)
    def advance(self, done_seconds): pass
    def note(self, text): pass

if "initdb" not in sys.argv:
    share_templates(os.getppid())
run_demo(plan=BRIEF, output=Path(sys.argv[1]), progress=Listener())
"""


class Listener:
    def __init__(self) -> None:
        self.titles: list[str] = []
        self.notes: list[str] = []

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        assert total_seconds
        self.titles.append(title)

    def advance(self, done_seconds: float) -> None:
        assert done_seconds >= 0

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.slow
def test_the_whole_story(tmp_path: Path, own_tmpdir: Path) -> None:
    listener = Listener()
    result = run_demo(plan=SMALL, output=tmp_path, progress=listener)
    assert len(listener.titles) == 5 + len(SMALL.sizes_bytes)
    assert "step 1 of 8" in listener.titles[0]
    assert result.server_version.startswith("18")
    assert result.database_bytes > 3 * 15 * MIB
    (workload,) = result.workloads
    assert workload.name == "mix"
    assert [row.shared_buffers_bytes for row in workload.rows] == list(SMALL.sizes_bytes)
    measured = [row.measured_miss_ratio for row in workload.rows]
    assert measured == sorted(measured, reverse=True)
    assert workload.snapshots_evidence is not None
    assert Evidence.open(Path(workload.snapshots_evidence)).complete
    if os.getuid() == 0:
        assert workload.trace_mean_abs_error is not None
        assert workload.trace_mean_abs_error < 0.03
        assert workload.trace_evidence is not None
        assert Evidence.open(Path(workload.trace_evidence)).meta.source == "trace"
    if workload.snapshots_mean_abs_error is None:
        # Eight seconds of a load whose pace other work takes away need not be enough: then predict says so.
        kept, _ = judge(Path(workload.snapshots_evidence), sizes_bytes=SMALL.sizes_bytes).shown()
        assert kept.level == "refused", kept.reasons
    else:
        assert workload.snapshots_mean_abs_error < 0.06
    assert msgspec.json.decode(msgspec.json.encode(result), type=DemoResult) == result


@pytest.mark.slow
def test_without_the_right_to_trace(own_tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise MissingAbility("tracing needs root", hint="sudo pgsweep demo")

    monkeypatch.setattr(demo, "record_trace", refuse)
    result = run_demo(plan=replace(BRIEF, sizes_bytes=(4 * MIB,)))
    (workload,) = result.workloads
    assert workload.rows[0].trace is None
    assert workload.trace_mean_abs_error is None
    assert workload.snapshots_evidence is None
    assert any("sudo pgsweep demo" in note for note in result.notes)


@pytest.mark.slow
def test_a_load_that_is_paced_while_it_is_recorded(tmp_path: Path, own_tmpdir: Path) -> None:
    """As in the large demo: flat out until the pool has settled, and at the other sizes."""
    sizes = (4 * MIB, 8 * MIB)
    plan = replace(BRIEF, workloads=LARGE_PLAN.workloads, sizes_bytes=sizes, recorded_per_second=5.0)
    (workload,) = run_demo(plan=plan, output=tmp_path).workloads
    assert workload.snapshots_evidence is not None
    observation = Observation(Evidence.open(Path(workload.snapshots_evidence)))
    hits = observation.counters.counted_rate("database", "bench", "blks_hit")
    assert hits is not None
    flat_out = [(row.measured_accesses or 0) / (row.measured_seconds or 1.0) for row in workload.rows]
    assert hits < min(flat_out) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("making PostgreSQL", signal.SIGINT),
        ("until steady", signal.SIGINT),
        ("by snapshots", signal.SIGINT),
        ("by trace", signal.SIGINT),
        ("predicting", signal.SIGTERM),
        ("the truth at 2 MB", signal.SIGINT),
        ("the truth at 4 MB", signal.SIGKILL),
    ],
)
def test_interrupted(tmp_path: Path, own_tmpdir: Path, step: str, number: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "kept"), *(["initdb"] if "making" in step else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    for line in child.stdout:
        if step in line:
            break
    else:
        pytest.fail(f"the demo ended before: {step}")
    run = next((own_tmpdir / f"pgsweep-{os.getuid()}").glob("c-*"), None)
    child.send_signal(number)
    # By the signal, or by the exception that Python makes of it; not because it was at its end.
    assert child.wait(30) == -number
    child.stdout.close()
    common = own_tmpdir / f"pgsweep-{os.getuid()}"
    wait_until(lambda: not common.exists())
    if run is not None:
        assert processes_in(run / "data") == []


def test_too_little_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = type("Usage", (), {"free": 100 * MIB})
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: usage)
    with pytest.raises(ClusterError, match="the demo needs") as caught:
        run_demo(work_dir=tmp_path)
    assert "--work-dir" in (caught.value.hint or "")


def test_the_plans_are_those_promised() -> None:
    assert [workload.name for workload in EVERYTHING.workloads] == ["zipf", "mix", "tpcb"]
    assert [size // MIB for size in EVERYTHING.sizes_bytes] == [8, 16, 32, 64, 128, 256, 512]
    assert [workload.name for workload in DEFAULT_PLAN.workloads] == ["mix"]
    assert len(DEFAULT_PLAN.sizes_bytes) == 5
    assert LARGE_PLAN.observed_bytes == 2048 * MIB
    assert LARGE_PLAN.sizes_bytes[0] * 4 == LARGE_PLAN.sizes_bytes[-1] == 2 * LARGE_PLAN.observed_bytes
