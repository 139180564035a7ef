"""What is recorded by either recorder, and something done to a server while it is being recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sql import record_sql
from pgsweep.progress import Silent
from pgsweep.records.prediction import RecordResult


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


Recorder = Callable[..., RecordResult]
RECORDERS = pytest.mark.parametrize("record", [record_sql, record_peek])
