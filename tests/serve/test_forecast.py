"""When `serve` predicts: within a share of a processor whatever it takes, and never silently stale."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from pgsweep.records.prediction import Verdict
from pgsweep.records.reasons import evidence
from pgsweep.records.serve import ServeAdvised, ServeCurve, ServeSummary
from pgsweep.serve.forecast import Answer, Forecasts
from pgsweep.serve.turns import SERVER_SHARE, SHARES, VERIFYING, Turn, Turns
from pgsweep.serve.web.pages import render
from tests.fix_advice import growing

HOUR = 3600.0
PAUSES = {900: 60.0, 3600: 300.0, 86400: 1800.0, VERIFYING: 600.0}


def simulated(
    servers: int, cost: float, *, hours: float = 24.0, slowness: float = 3.0
) -> tuple[Counter[Turn], float]:
    """Take turns for some hours of simulated time; return how many of each there were, and their cost.

    Args:
        servers: how many.
        cost: seconds of a processor that each prediction takes.
        hours: in all.
        slowness: seconds that pass for each of those.
    """
    now, spent = 0.0, 0.0
    turns, taken = Turns([f"s{n}" for n in range(servers)], now), Counter[Turn]()
    while now < hours * HOUR:
        turn = turns.next(now)
        if turn is None:
            now += 1.0
            continue
        taken[turn] += 1
        spent += cost
        until = turns.took(turn, now, cost, PAUSES[turn.window])
        assert until > PAUSES[turn.window] - 1e-6
        now += slowness * cost
    return taken, spent


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("cost", [0.1, 1.2, 4.0, 17.0, 120.0])
def test_slow_predictions_keep_to_their_share_and_take_no_turns_of_others(servers: int, cost: float) -> None:
    taken, spent = simulated(servers, cost)
    # What may be taken in advance at first is five minutes' worth, and a turn may be the last.
    most = SERVER_SHARE * (24 * HOUR + 300) + cost * len(SHARES)
    assert spent <= servers * most
    for server in range(servers):
        for window, share in SHARES.items():
            usual = 24 * HOUR / PAUSES[window]
            affordable = 24 * HOUR * share / cost
            assert taken[Turn(f"s{server}", window)] >= 0.8 * min(usual, affordable) - 1


def test_of_many_servers_all_have_their_turns_within_a_quarter_of_a_processor() -> None:
    taken, spent = simulated(40, 5.0)
    assert spent <= 0.25 * (24 * HOUR + 300) + 5.0 * len(taken)
    assert len(taken) == 40 * len(SHARES)
    short = [taken[Turn(f"s{n}", 900)] for n in range(40)]
    assert max(short) - min(short) <= 2


def test_predictions_that_cost_little_come_as_often_as_is_usual() -> None:
    taken, _ = simulated(1, 0.2, hours=1.0)
    assert taken[Turn("s0", 900)] == pytest.approx(60, abs=1)
    assert taken[Turn("s0", 3600)] == pytest.approx(12, abs=1)


class Watching:
    """Forecasts of one server whose predictions take what a test says."""

    def __init__(self, folder: Path, answer: Answer) -> None:
        self.shown: list[ServeCurve] = []
        self.advised: list[ServeAdvised | None] = []
        self.asked: list[int] = []
        self.answer = answer
        self.piece = folder / "1000.evidence"
        (self.piece / "counters").mkdir(parents=True)
        self.forecasts = Forecasts({"s": folder}, self._show, lambda _key, _answer: None)
        self.forecasts._answer = self._answer  # type: ignore[method-assign]

    def _show(self, _key: str, curve: ServeCurve, advised: ServeAdvised | None) -> None:
        self.shown.append(curve)
        self.advised.append(advised)

    def _answer(self, key: str, window: int) -> Answer | None:
        del key
        self.asked.append(window)
        return self.answer

    def record(self, seconds_ago: float = 0.0) -> None:
        """Have a part written."""
        at = time.time() - seconds_ago
        for path in (self.piece, self.piece / "counters"):
            os.utime(path, (at, at))

    def take(self, window: int) -> list[ServeCurve]:
        """Take a turn; return what was shown."""
        before = len(self.shown)
        self.forecasts._take(Turn("s", window))
        return self.shown[before:]


def predicted(covered: float, seconds: float = 1.0) -> Answer:
    return Answer(covered_seconds=covered, result=growing().prediction, processor_seconds=seconds)


def test_the_page_says_when_the_next_comes_where_each_takes_long(tmp_path: Path) -> None:
    watching = Watching(tmp_path, predicted(5000.0, 20.0))
    [first] = watching.take(900)
    watching.record(-1.0)
    now = time.time()
    [curve] = watching.take(900)
    assert curve.next_at is not None
    assert curve.paced_seconds is not None
    assert first.next_at is not None
    # 300 s of its share were free at first.
    assert curve.next_at - now == pytest.approx(2 * 20.0 / SHARES[900] - 300.0, abs=10.0)
    text = verdict_of(curve)
    assert "the next in 28 min" in text
    assert "one takes 20 s of a processor" in text
    assert "alert" not in text
    watching = Watching(tmp_path / "quick", predicted(5000.0, 0.2))
    [curve] = watching.take(900)
    assert curve.paced_seconds is None
    assert curve.next_at is not None
    assert curve.next_at - time.time() == pytest.approx(60.0, abs=10.0)


@pytest.mark.parametrize(
    ("covered", "asked", "windows"),
    [
        (300.0, 900, [900, 3600, 86400]),
        (300.0, 86400, [900, 3600, 86400]),
        (900.0, 900, [900]),
        (1500.0, 3600, [3600, 86400]),
        (3600.0, 3600, [3600]),
        (5000.0, 86400, [86400]),
    ],
)
def test_windows_with_the_same_evidence_are_predicted_once(
    tmp_path: Path, covered: float, asked: int, windows: list[int]
) -> None:
    watching = Watching(tmp_path, predicted(covered))
    shown = watching.take(asked)
    assert sorted(curve.window_seconds for curve in shown) == windows
    assert watching.asked == [asked]
    for window in windows:
        assert watching.take(window) == [], "there is no more evidence"
    assert watching.asked == [asked]


def test_where_nothing_is_recorded_nothing_is_predicted_and_the_page_says_since_when(tmp_path: Path) -> None:
    watching = Watching(tmp_path, predicted(300.0))
    watching.record(1000.0)
    [curve, *_] = watching.take(900)
    assert curve.waits_since is None
    [curve] = watching.take(900)
    assert curve.waits_since == pytest.approx(time.time() - 1000.0, abs=100.0)
    assert curve.result is not None
    assert 'data-waits="900"' in verdict_of(curve)
    assert watching.take(900) == [], "it is said once"
    assert watching.asked == [900]
    watching.record()
    [curve, *_] = watching.take(900)
    assert curve.waits_since is None
    assert watching.asked == [900, 900]
    assert watching.take(900) == [], "the next part may come at any moment"


def test_what_failed_is_tried_again_without_new_evidence_and_more_and_more_rarely(tmp_path: Path) -> None:
    watching = Watching(tmp_path, Answer(failed="signal 9", processor_seconds=0.1))
    pauses = []
    for _ in range(3):
        [curve] = watching.take(900)
        assert curve.failed == "signal 9"
        assert curve.next_at is not None
        pauses.append(curve.next_at - time.time())
    assert pauses == pytest.approx([60.0, 120.0, 240.0], abs=10.0)


def test_a_forecast_that_takes_too_much_or_dies_says_so(tmp_path: Path) -> None:
    (tmp_path / "1.evidence").mkdir()
    forecasts = Forecasts({"s": tmp_path}, lambda *_: None, lambda *_: None)

    def answer() -> Answer:
        found = forecasts._answer("s", 900)
        assert found is not None
        return found

    forecasts._most_seconds = 0.01
    found = answer()
    assert found.failed == "it took more than 0 s of a processor"
    assert found.processor_seconds > 0.01, "what it took until it was given up counts"
    forecasts._most_seconds, forecasts._longest_seconds = 60.0, 0.01
    assert answer().failed == "it took longer than 0 s"
    forecasts._longest_seconds = 600.0
    begin = time.monotonic()
    found = answer()
    assert (found.failed, found.result) == (None, None), "the next process answers"
    assert found.why is not None
    assert 0 < found.processor_seconds <= 8 * (time.monotonic() - begin)
    assert answer().processor_seconds < found.processor_seconds, "modules are loaded once"
    assert forecasts._process is not None
    forecasts._process.kill()
    assert answer().failed in (None, "its process ended (signal 9)")
    forecasts._end_process()


def verdict_of(*curves: ServeCurve) -> str:
    server = ServeSummary(key="s", name="s", place="here", state="up")
    found = render("_verdict.html.j2", server=server, curves=curves, recording=None)
    return re.sub("</?time.*?>", "", found)


def test_windows_of_the_same_evidence_and_reasons_are_said_once() -> None:
    now, reasons = time.time(), ["the first", "the second"]
    said = Verdict(level="rough", reasons=[evidence(text) for text in reasons])
    result = msgspec.structs.replace(growing().prediction, verdict=said)
    of_all = [
        ServeCurve(window_seconds=window, covered_seconds=600.0, at=now, result=result)
        for window in (900, 3600, 86400)
    ]
    text = verdict_of(*of_all)
    assert text.count("<p ") == 1
    assert "Last 15 min, 1 h, 24 h" in text
    # With other evidence each has a paragraph of its own, which does not repeat the reasons.
    other = msgspec.structs.replace(result, source="sql", unknown_bytes=[1 << 40])
    text = verdict_of(of_all[0], msgspec.structs.replace(of_all[1], at=now - 9, result=other))
    assert text.count("<p ") == 2
    early = ServeCurve(window_seconds=900, covered_seconds=1.0, at=now, result=None, early=True, why="it is")
    later = msgspec.structs.replace(early, window_seconds=3600, at=now + 3)
    assert verdict_of(early, later).count("it is") == 1
    for reason in reasons:
        assert text.count(reason[1:]) == 1


def test_what_a_curve_lacks_is_said_with_the_age_of_what_is_shown() -> None:
    now = time.time()
    curve = ServeCurve(
        window_seconds=900, covered_seconds=600.0, at=now - 1140, result=growing().prediction, next_at=now
    )
    assert "alert" not in verdict_of(curve)
    failed = msgspec.structs.replace(curve, failed="it took longer than 300 s", failed_at=now - 120)
    text = verdict_of(failed)
    assert "the one of 2 min ago failed, it took longer than 300 s." in text
    assert "What is shown is 19 min old" in text
    text = verdict_of(msgspec.structs.replace(curve, next_at=now - 600))
    assert "has been due for 10 min" in text
    assert "What is shown is 19 min old" in text
    early = ServeCurve(window_seconds=900, covered_seconds=10.0, at=now, result=None, early=True, why="10 s")
    assert "too early: 10 s" in verdict_of(early)
    assert 'data-state="early"' in verdict_of(early)
    assert "no prediction" not in verdict_of(early)
