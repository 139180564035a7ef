"""What a person sees of `predict` and `advise` while they compute; elsewhere there is the answer alone."""

from __future__ import annotations

import re
from pathlib import Path

from tests.fix_cli import run
from tests.fix_screen import screen_of
from tools.same_answers import EVIDENCE

_WAITING = """
import time
from pathlib import Path
from pgsweep.sizing.page_cache.disk_reads import DiskReads
simulate = DiskReads.predict
def waiting(self):
    while not Path({file!r}).exists():
        time.sleep(0.02)
        self._inputs.done(0.25)
    return simulate(self)
DiskReads.predict = waiting
"""
TRACE = str(EVIDENCE / "load-trace")
FRESH = {"PGSWEEP_PREDICT_FRESH": "1", "PGSWEEP_ADVISE_FRESH": "1"}


def test_the_curve_is_there_at_once_and_replaced_by_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "go"
    env = {**FRESH, "NO_COLOR": "1"}
    with screen_of("predict", TRACE, lines=60, env=env, first=_WAITING.format(file=str(file))) as screen:
        first = screen.wait_for("256 kB", "today", "simulating the page cache", " left")
        assert "disk reads" not in first
        file.touch()
        assert screen.wait_end() == 0
        last = screen.text()
    assert "simulating the page cache" not in last
    assert len(re.findall("256 kB", last)) == len(re.findall("256 kB", first)), "the curve is there twice"
    answer = run("predict", TRACE).stdout
    assert _said(last) == _said(answer)


def _said(text: str) -> list[list[str]]:
    """Return the words of each line but of rules, which a pipe does not get."""
    return [words for line in text.splitlines() if (words := line.replace("─", "").split())]


def test_a_small_window_shows_what_it_holds_and_then_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "go"
    with screen_of("predict", TRACE, lines=12, env=FRESH, first=_WAITING.format(file=str(file))) as screen:
        screen.wait_for("today")
        file.touch()
        assert screen.wait_end() == 0
        raw = screen.raw.decode()
    after = raw[raw.rindex("\x1b[J") :]
    assert "256 kB" in after
    assert "simulating" not in after


def test_advise_shows_how_far_it_is_and_no_curve(tmp_path: Path) -> None:
    file = tmp_path / "go"
    with screen_of("advise", TRACE, lines=60, env=FRESH, first=_WAITING.format(file=str(file))) as screen:
        assert "today" not in screen.wait_for("simulating the page cache")
        file.touch()
        assert screen.wait_end() == 0
        assert "shared_buffers:" in screen.text()


def test_a_pipe_gets_the_answer_alone() -> None:
    done = run("predict", TRACE, env={"TERM": "xterm"})
    assert done.stderr == "predicting\n"
    assert "\x1b" not in done.stdout
    assert done.stdout.count("The prediction is") == 1
