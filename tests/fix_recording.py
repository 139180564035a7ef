"""What is recorded by either recorder, and something done to a server while it is being recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sql import record_sql
from pgsweep.progress import Silent
from pgsweep.records.prediction import RecordResult


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


class WhenRecording(Silent):
    """Does something in a thread of its own, some seconds after the recording has begun.

    Before it begins a recorder looks at the catalogs and measures the load, which takes as long as it takes.
    """

    def __init__(self, action: Callable[[], object], after_seconds: float = 0.5) -> None:
        self._timer = threading.Timer(after_seconds, action)

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        if title.startswith("recording"):
            self._timer.start()

    def join(self) -> None:
        """Wait until it is done."""
        self._timer.join()


def forget_cluster(evidence: Path) -> None:
    """Make evidence as it is where the cluster's system identifier could not be read."""
    meta = json.loads((evidence / "meta.json").read_text())
    assert int(meta.pop("system_identifier")) > 0
    (evidence / "meta.json").write_text(json.dumps(meta))


Recorder = Callable[..., RecordResult]
RECORDERS = pytest.mark.parametrize("record", [record_sql, record_peek])
