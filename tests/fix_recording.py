"""What is recorded by either recorder, and something done to a server while it is being recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sql import record_sql
from pgsweep.progress import NullListener
from pgsweep.records.prediction import RecordResult
from tests.fix_process import busyness


class Heard:
    """Keeps what a recording says."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []
        self.done_seconds = 0.0

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        self.stages.append(title)

    def advance(self, done_seconds: float) -> None:
        self.done_seconds = done_seconds

    def note(self, text: str) -> None:
        self.notes.append(text)


def a_snapshot_seconds() -> float:
    """Return after how long a recording of a minute has a snapshot.

    The first comes within a second, at random; on a busy machine later, as snapshots cost more there.
    """
    return min(1.2 * busyness(), 40.0)


class WhenRecording(NullListener):
    """Does something in a thread of its own, as soon as a recording has begun.

    Args:
        action: what is done, once.
        after_seconds: how much must have been recorded before, by the recorder's own clock.
    """

    def __init__(self, action: Callable[[], object], after_seconds: float = 0.0) -> None:
        self._thread = threading.Thread(target=action)
        self._after_seconds = after_seconds
        self._records = False

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        self._records = title.startswith("recording")

    def advance(self, done_seconds: float) -> None:
        if self._records and done_seconds >= self._after_seconds and self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        """Wait until it is done."""
        self._thread.join()


def forget_cluster(evidence: Path) -> None:
    """Make evidence as it is where the cluster's system identifier could not be read."""
    meta = json.loads((evidence / "meta.json").read_text())
    assert int(meta.pop("system_identifier")) > 0
    (evidence / "meta.json").write_text(json.dumps(meta))


Recorder = Callable[..., RecordResult]
RECORDERS = pytest.mark.parametrize("record", [record_sql, record_peek])
