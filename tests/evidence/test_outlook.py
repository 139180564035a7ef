"""A recording that will be refused ends with the reason, and none is said to suffice before it is refused."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import wait
from pathlib import Path

import psycopg
import pytest

from pgsweep.evidence import outlook, snapshot_schedule
from pgsweep.evidence.outlook import UNPREDICTABLE, Judge, Outlook, Refusal
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.store import Evidence
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.sizing.outlook import refusal_of
from pgsweep.sizing.predict import predict
from pgsweep.ui.views.record import ending
from tools.same_answers import EVIDENCE

PATH = Path("x.evidence")
SHORT, LASTING = Refusal("too short", lasting=False), Refusal("in order", lasting=True)


class Notes(NullListener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def decisions(
    answers: Sequence[Refusal | None],
    times: Sequence[tuple[float, str | None]],
    asked: float | None = None,
    *,
    decides: bool = False,
) -> tuple[list[str | None], int, list[str]]:
    """Return what is decided at each time, how often the judge was asked, and what was said."""
    left, heard = list(answers), Notes()
    judge = Judge(lambda _: left.pop(0), decides=decides)
    one = Outlook(judge, lambda: PATH, asked_seconds=asked, progress=heard)
    found = []
    for now, reason in times:
        decided = one.decided(reason, now)
        if one._asked is not None:
            wait([one._asked])
        found.append(decided or one.decided(reason, now))
    one.end()
    return found, len(answers) - len(left), heard.notes


def test_enough_is_said_of_what_is_not_refused_only() -> None:
    found, asked, notes = decisions(
        [SHORT, SHORT, None], [(29, None), (31, "enough"), (40, "enough"), (47, "enough"), (75, "enough")]
    )
    assert found == [None, None, None, None, "enough"]
    assert asked == 3, "not at every look of the recorder"
    assert notes == ["not enough yet: too short"], "said once"


def test_what_lies_in_the_load_ends_it() -> None:
    times = [(10, None), (30, None), (44, "enough"), (45, "enough")]
    assert decisions([LASTING, LASTING], times)[0] == [None, None, None, UNPREDICTABLE]
    # VACUUM was at work when it was looked at first.
    assert decisions([LASTING, None], times)[0] == [None, None, None, "enough"]
    assert decisions([LASTING, SHORT, LASTING, LASTING], [*times, (68, None), (102, None)])[0][-2:] == [
        None,
        UNPREDICTABLE,
    ]
    # An hour that was asked for is recorded: the load may be another one later.
    found, _, notes = decisions([LASTING], [(30, None), (31, None), (3600, "time")], asked=3600)
    assert (found, len(notes)) == ([None, None, "time"], 1)
    for reason in ("limit", "still", "time"):
        assert decisions([], [(600, reason)])[0] == [reason]
    alone = Outlook(None, lambda: PATH, asked_seconds=None, progress=Notes())
    assert alone.decided("enough", 31) == "enough"
    assert ending(UNPREDICTABLE) == "ended early: no prediction is possible from this load"


def test_where_a_width_is_asked_for_the_judge_decides() -> None:
    times = [(29.0, None), (31.0, "enough"), (40.0, "enough"), (47.0, None), (75.0, None)]
    assert decisions([SHORT, SHORT, None], times, decides=True)[:2] == ([None, None, None, None, "enough"], 3)
    assert decisions([SHORT], [(31, None), (40, "limit")], decides=True)[0] == [None, "limit"]
    # Of a time that was given it needs no more than it takes.
    assert decisions([None], [(31, None)], asked=3600, decides=True)[0] == ["enough"]


@pytest.mark.parametrize("name", ["steady-small", "order-sql"])
def test_evidence_is_enough_when_its_intervals_are_as_asked(name: str) -> None:
    found = predict(EVIDENCE / name)
    today = found.observed.shared_buffers_bytes
    points = predict(EVIDENCE / name, sizes_bytes=[today // 2, today, 2 * today]).points
    if not points:
        assert refusal_of(EVIDENCE / name, 0.9) == refusal_of(EVIDENCE / name)
        return
    widest = max(point.high - point.low for point in points) / 2
    assert refusal_of(EVIDENCE / name, widest + 1e-9) is None
    wide = refusal_of(EVIDENCE / name, widest - 1e-6)
    assert wide is not None
    assert not wide.lasting


@pytest.mark.parametrize(
    ("name", "lasting"),
    [
        ("order-sql", True),
        ("scan-no-ring", True),
        ("sql-no-counts-17", True),
        ("short", False),
        ("steady-small", None),
    ],
)
def test_evidence_is_judged_as_predict_does(name: str, lasting: bool | None, tmp_path: Path) -> None:
    found = refusal_of(EVIDENCE / name)
    assert (None if found is None else found.lasting) == lasting
    today = predict(EVIDENCE / name).observed.shared_buffers_bytes
    verdict = predict(EVIDENCE / name, sizes_bytes=[today // 2, today, 2 * today]).verdict
    assert (verdict.level == "refused") == (found is not None)
    # Of several reasons the gravest decides: the others may refuse nothing.
    assert found is None or found.why == verdict.sentences[0]
    assert refusal_of(tmp_path) is None, "nothing can be read there yet"


def test_nothing_waits_for_the_judge() -> None:
    answer, asked = threading.Event(), list[Path]()

    def refusal_of(path: Path) -> Refusal:
        asked.append(path)
        assert answer.wait(60)
        return LASTING

    one = Outlook(Judge(refusal_of), lambda: PATH, asked_seconds=None, progress=Notes())
    assert [one.decided(None, now) for now in (30, 31, 90)] == [None, None, None]
    assert one.decided("limit", 91) == "limit", "given up"
    answer.set()
    assert one._asked is not None
    wait([one._asked])
    assert (one.decided(None, 92), one.refusal) == (None, LASTING)
    assert (asked, one.end()) == ([PATH], LASTING)


def test_a_recording_ends_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "LEAST_SECONDS", 3.0)
    with Cluster.create(None, {"shared_buffers": "1MB", "track_counts": "off"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT g, repeat('x', 500) FROM generate_series(1, 5000) g")
        result = record_sql(cluster.conninfo(), tmp_path / "x.evidence", judge=Judge(refusal_of))
    assert result.ended_by == UNPREDICTABLE
    assert result.seconds < 30
    assert any(one.startswith("no prediction is possible: track_counts is off") for one in result.warnings)
    evidence = Evidence.open(tmp_path / "x.evidence")
    assert evidence.complete
    assert evidence.meta.ended_by == UNPREDICTABLE
    shutil.rmtree(tmp_path / "x.evidence")


def test_a_recording_that_ends_at_its_limit_says_what_was_missing(
    server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "LEAST_SECONDS", 1.0)
    monkeypatch.setattr(snapshot_schedule, "MOST_SECONDS", 3.0)
    result = record_sql(server.conninfo(), tmp_path / "x.evidence", judge=Judge(lambda _: SHORT))
    assert result.ended_by == "limit"
    assert any("when last looked at: too short; record for longer" in one for one in result.warnings)
