"""Do something to a server while it is being recorded, whenever that begins."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pgsweep.progress import Silent


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
