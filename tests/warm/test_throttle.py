"""Pauses of a session that leaves the processors to queries."""

from __future__ import annotations

import time

import pytest

from pgsweep.host.processor_time import host_seconds
from pgsweep.warm.throttle import ProcessorPauses

PROCESSORS = 4


class Clock:
    """The time, and how long the processors were busy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.busy: float | None = 7.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def work(self, seconds: float, busy_processors: float | None) -> float:
        """Return the pause after work of some seconds beside so many busy processors."""
        pauses = ProcessorPauses(lambda: self.busy, PROCESSORS)
        pauses.begin()
        self.now += seconds
        self.busy = (
            None if busy_processors is None or self.busy is None else self.busy + busy_processors * seconds
        )
        return pauses.pause_seconds()


@pytest.mark.parametrize(
    ("busy", "pause"),
    [(0.0, 0.0), (3.5, 0.0), (3.75, 0.15), (4.0, 0.3), (4.2, 0.3)],
)
def test_the_pause_grows_as_the_last_half_of_a_processor_fills(
    monkeypatch: pytest.MonkeyPatch, busy: float, pause: float
) -> None:
    assert Clock(monkeypatch).work(0.1, busy) == pytest.approx(pause)


def test_long_work_is_followed_by_a_short_pause_and_what_is_not_known_by_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Clock(monkeypatch).work(60.0, 4.0) == 2.0
    assert Clock(monkeypatch).work(0.1, None) == 0.0
    assert Clock(monkeypatch).work(0.0, 4.0) == 0.0


def test_the_host_counts_what_this_process_does() -> None:
    before, until = host_seconds(), time.process_time() + 0.2
    while time.process_time() < until:
        pass
    after = host_seconds()
    assert before is not None and after is not None
    assert after - before >= 0.15
