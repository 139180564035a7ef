"""Answers that are kept beside the evidence: the same as fresh ones, and believed only where we made them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgsweep.advice.ask import advise
from pgsweep.commands import asked_by
from pgsweep.errors import EvidenceError
from pgsweep.evidence import kept
from pgsweep.evidence.exported import ExportedTrace
from pgsweep.evidence.kept import Question, Steps, answered
from pgsweep.evidence.schema import ANSWERS, EvidenceMeta
from pgsweep.evidence.store import Evidence
from pgsweep.evidence.writer import EvidenceWriter
from pgsweep.records.common import Subject
from pgsweep.sizing import predict as sizing
from pgsweep.sizing.predict import predict
from tests.fix_cli import run
from tests.fix_process import NOBODY
from tools.same_answers import EVIDENCE

ASKED = Question(command="predict", sizes_bytes=[1 << 20])
_PROVENANCE = re.compile(r'"provenance": \{.*?\n  \}', re.DOTALL)
_KEPT = {"PGSWEEP_PREDICT_FRESH": "0", "PGSWEEP_ADVISE_FRESH": "0"}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "pgsweep"


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return copied("short", tmp_path)


def copied(name: str, folder: Path) -> Path:
    """Return a copy of committed evidence, in a folder that only we may write to."""
    folder.chmod(0o700)
    for path in EVIDENCE.glob(f"{name}*") if name.endswith(".oracleGeneral") else [EVIDENCE / name]:
        (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder / name


class Counted:
    """Answers with how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, _steps: Steps) -> Subject:
        self.times += 1
        return Subject(server=f"answer {self.times}")

    def ask(self, evidence: Path, question: Question = ASKED) -> str | None:
        return answered(evidence, question, Subject, self).server


@pytest.fixture
def counted() -> Iterator[Counted]:
    yield Counted()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("load-trace", ["predict"]),
        ("load-trace", ["advise"]),
        ("load-sql", ["predict", "--ram", "64MB"]),
        ("load-sql", ["predict", "--what-if", "ram 64MB", "--sizes", "1MB,4MB"]),
        ("zipf-peek", ["advise", "--ram", "64MB"]),
        ("filled-up", ["predict"]),
        ("relations-missing", ["predict"]),
        ("exported.oracleGeneral", ["predict"]),
        ("foreign-small.oracleGeneral", ["predict"]),
    ],
)
def test_a_kept_answer_is_the_fresh_one_byte_for_byte(name: str, command: list[str], tmp_path: Path) -> None:
    at = copied(name, tmp_path)
    file = at.with_name(at.name + ANSWERS) if at.is_file() else at / ANSWERS
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), **_KEPT}

    def said(*options: str) -> str:
        done = run(*command, at.name, "--json", *options, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return _PROVENANCE.sub("", done.stdout)

    fresh = said("--fresh")
    assert not file.exists()
    assert said() == fresh
    written = file.read_bytes()
    assert len(written) < 60_000
    assert said() == fresh
    assert file.read_bytes() == written
    text = run(*command, at.name, cwd=tmp_path, env=env).stdout
    assert text == run(*command, at.name, "--fresh", cwd=tmp_path, env=env).stdout


def test_nothing_is_computed_a_second_time(evidence: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = predict(evidence, sizes_bytes=[1 << 20, 1 << 21], kept=True)
    advice = advise(evidence, memory_bytes=1 << 26, kept=True)
    monkeypatch.setattr(sizing, "_made", None)
    monkeypatch.setattr("pgsweep.advice.gather.advise_from", None)
    assert predict(evidence, sizes_bytes=[1 << 20, 1 << 21], kept=True) == first
    moved = evidence.rename(evidence.with_name("moved"))
    again = advise(moved, memory_bytes=1 << 26, kept=True)
    assert again.settings == advice.settings
    assert again.evidence == str(moved)


def test_what_names_a_server_is_not_kept(evidence: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands are for that server, and who asks the evidence next may name another."""
    with asked_by(options=lambda: {"-h": "db1"}):
        assert "-h db1" in advise(evidence, memory_bytes=1 << 26, kept=True).settings[0].reason
    monkeypatch.setattr("pgsweep.advice.gather.advise_from", None)
    with pytest.raises(TypeError):
        advise(evidence, memory_bytes=1 << 26, kept=True)


def _not_again(*_: object, **_named: object) -> None:
    raise AssertionError("it is computed again")


@pytest.mark.parametrize(
    ("name", "slow"),
    [
        ("zipf-peek", ["pgsweep.sizing.snapshots.model.fit_load"]),
        ("load-sql", ["pgsweep.sizing.snapshots.model.fit_load"]),
        ("load-trace", ["pgsweep.sizing.traces.curve.replay_sizes_of"]),
        ("exported.oracleGeneral", ["pgsweep.sizing.traces.curve.replay_sizes_of"]),
    ],
)
def test_a_part_of_the_sizes_is_answered_by_steps_that_are_kept(
    name: str, slow: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = copied(name, tmp_path)
    all_of_them = [point.shared_buffers_bytes for point in predict(at, kept=True).points]
    parts = [all_of_them[1::2], all_of_them[-1:], all_of_them]
    fresh = [predict(at, sizes_bytes=part) for part in parts]
    for function in slow:
        monkeypatch.setattr(function, _not_again)
    monkeypatch.setattr("pgsweep.sizing.page_cache.trace_disk_reads.TraceDiskReads._simulate", _not_again)
    assert [predict(at, sizes_bytes=part, kept=True) for part in parts] == fresh


def test_another_memory_is_answered_with_the_rates_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = copied("zipf-peek", tmp_path)
    predict(at, kept=True)
    fresh = [predict(at, memory_bytes=1 << 30), predict(at, memory_bytes=1 << 30, what_if=["ram 2GB"])]
    monkeypatch.setattr("pgsweep.sizing.snapshots.model.fit_load", _not_again)
    assert predict(at, memory_bytes=1 << 30, kept=True) == fresh[0]
    assert predict(at, memory_bytes=1 << 30, what_if=["ram 2GB"], kept=True) == fresh[1]


def test_another_load_is_not_answered_by_steps_of_this_one(tmp_path: Path) -> None:
    at = copied("zipf-peek", tmp_path)
    predict(at, kept=True)
    for what_if in (["connections 2x"], ["r0 grows 2x"]):
        assert predict(at, what_if=what_if, kept=True) == predict(at, what_if=what_if)


def test_steps_of_evidence_that_changes_meanwhile_are_not_used(evidence: Path) -> None:
    asked: list[int] = []

    def made(steps: Steps) -> Subject:
        asked.append(steps.step("some", int, lambda: len(asked)))
        if len(asked) == 2:
            _other_part(evidence)
        return Subject(server=str(asked[-1]))

    questions = [Question(command="predict", seed=seed) for seed in range(2)]
    assert [answered(evidence, question, Subject, made).server for question in questions] == ["0", "2"]


def test_of_many_steps_the_latest_stay() -> None:
    steps = Steps({"old 1": bytes(1 << 16)})
    assert steps.steps("new", bytes, [1, 2], lambda keys: {key: bytes(1 << 15) for key in keys})
    assert list(steps.added_to({"old 1": bytes(1 << 16)})) == ["new 1", "new 2"]


def test_each_question_has_its_answer_and_the_latest_stay(evidence: Path, counted: Counted) -> None:
    questions = [Question(command="predict", seed=seed) for seed in range(25)]
    said = [counted.ask(evidence, question) for question in questions]
    assert len(set(said)) == 25
    assert [counted.ask(evidence, question) for question in questions[-20:]] == said[-20:]
    assert counted.times == 25
    assert counted.ask(evidence, questions[0]) != said[0]


def _other_part(evidence: Path) -> None:
    part = next((evidence / "snapshots").iterdir())
    part.write_bytes(part.read_bytes() + b"\0")


def _other_meta(evidence: Path) -> None:
    meta = json.loads((evidence / "meta.json").read_text())
    (evidence / "meta.json").write_text(json.dumps(meta | {"seconds": 1.5}))


def _lost_part(evidence: Path) -> None:
    next((evidence / "snapshots").iterdir()).unlink()


def _cut(evidence: Path) -> None:
    os.truncate(evidence / ANSWERS, 100)


def _flipped(evidence: Path) -> None:
    data = bytearray((evidence / ANSWERS).read_bytes())
    data[-5] ^= 1
    (evidence / ANSWERS).write_bytes(data)


def _forged(evidence: Path) -> None:
    """What another user has kept, who has another key."""
    data = (evidence / ANSWERS).read_bytes()
    (evidence / ANSWERS).write_bytes(kept._signature(bytes(32), data[32:]) + data[32:])


def _empty(evidence: Path) -> None:
    (evidence / ANSWERS).write_bytes(b"")


def _endless(evidence: Path) -> None:
    os.truncate(evidence / ANSWERS, 1 << 40)


def _fifo(evidence: Path) -> None:
    (evidence / ANSWERS).unlink()
    os.mkfifo(evidence / ANSWERS)


@pytest.mark.parametrize(
    "change", [_other_part, _other_meta, _lost_part, _cut, _flipped, _forged, _empty, _endless, _fifo]
)
def test_changed_evidence_or_a_damaged_file_is_answered_anew(
    change: Callable[[Path], None], evidence: Path, counted: Counted
) -> None:
    assert counted.ask(evidence) == counted.ask(evidence) == "answer 1"
    change(evidence)
    assert counted.ask(evidence) == counted.ask(evidence) == "answer 2"


def test_what_belongs_to_an_exported_trace_counts_too(tmp_path: Path, counted: Counted) -> None:
    trace = copied("exported.oracleGeneral", tmp_path)
    counted.ask(trace)
    start = trace.with_name(trace.name + ".start")
    for number, path in enumerate((start.with_suffix(".relations.csv"), start / "meta.json"), start=2):
        with path.open("a") as file:
            file.write("\n")
        assert counted.ask(trace) == counted.ask(trace) == f"answer {number}"
    assert ExportedTrace.open(trace) is not None


def test_another_version_answers_anew(
    evidence: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.ask(evidence)
    monkeypatch.setattr("pgsweep.evidence.kept._native.__version__", "0.0.0", raising=False)
    assert counted.ask(evidence) == "answer 2"


def test_evidence_that_changes_meanwhile_leaves_no_answer(evidence: Path) -> None:
    def made(_steps: Steps) -> Subject:
        _other_part(evidence)
        return Subject()

    answered(evidence, ASKED, Subject, made)
    assert not (evidence / ANSWERS).exists()


def test_a_refusal_is_not_kept(evidence: Path) -> None:
    (evidence / "meta.json").unlink()
    for _ in range(2):
        with pytest.raises(EvidenceError):
            predict(evidence, kept=True)
    assert not (evidence / ANSWERS).exists()


@pytest.mark.parametrize("mode", [0o555, 0o775])
def test_where_it_cannot_be_written_or_others_may_write_nothing_is_kept(
    mode: int, evidence: Path, counted: Counted
) -> None:
    evidence.chmod(mode)
    if mode == 0o555 and os.geteuid() == 0:
        os.chown(evidence, *NOBODY)  # root may write anywhere, and leaves the folders of others alone
    assert counted.ask(evidence) == "answer 1"
    assert counted.ask(evidence) == "answer 2"
    assert not (evidence / ANSWERS).exists()


def test_without_a_state_folder_nothing_is_kept(
    evidence: Path, counted: Counted, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    counted.ask(evidence)
    assert counted.ask(evidence) == "answer 2"
    assert not (evidence / ANSWERS).exists()


def test_a_link_in_its_place_is_neither_read_nor_written_through(
    evidence: Path, counted: Counted, tmp_path: Path
) -> None:
    counted.ask(evidence)
    victim = (evidence / ANSWERS).rename(tmp_path / "victim")
    before = victim.read_bytes()
    (evidence / ANSWERS).symlink_to(victim)
    assert counted.ask(evidence) == "answer 2"
    assert victim.read_bytes() == before
    assert not (evidence / ANSWERS).is_symlink()
    # Nor is a second name of a file, nor a link in the place of the folder.
    (evidence / ANSWERS).unlink()
    (evidence / ANSWERS).hardlink_to(victim)
    assert counted.ask(evidence) == "answer 3"
    assert victim.read_bytes() == before
    folder = evidence.rename(tmp_path / "moved")
    (folder / ANSWERS).unlink()
    evidence.symlink_to(folder)
    counted.ask(evidence)
    assert not (folder / ANSWERS).exists()


def test_it_has_the_permissions_of_the_evidence_and_the_key_is_secret(
    evidence: Path, counted: Counted, state: Path
) -> None:
    (evidence / "meta.json").chmod(0o600)
    counted.ask(evidence)
    assert (evidence / ANSWERS).stat().st_mode & 0o777 == 0o600
    assert [path.stat().st_mode & 0o777 for path in state.iterdir()] == [0o600]


def test_it_is_no_part_of_the_evidence(evidence: Path, counted: Counted) -> None:
    before = Evidence.open(evidence)
    counted.ask(evidence)
    after = Evidence.open(evidence)
    assert (after.meta, after.warnings) == (before.meta, before.warnings)
    with EvidenceWriter(evidence, EvidenceMeta(source="sql", seconds=1.0), overwrite=True) as writer:
        assert not (evidence / ANSWERS).exists()
        writer.close(writer.meta)
