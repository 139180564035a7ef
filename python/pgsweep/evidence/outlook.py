"""Whether what is recorded will give a prediction: asked while it is recorded, so that it ends in time.

The recording's own measures (clock passes, snapshots) say how much data there are, and nothing of the load: a
load that no recording of snapshots can predict has enough of them too. So what was recorded so far is judged
after half a minute, then at ever longer distances, and before a recording is said to suffice; a reason that a
longer recording does not change ends it when it is found twice. That takes a thread of its own, for on a busy
machine it is half a minute in which nothing would be sampled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pgsweep.evidence.snapshot_schedule import LEAST_SECONDS
from pgsweep.progress import Progress

UNPREDICTABLE: Final = "unpredictable"
"""What such a recording is ended by."""

_THREAD: Final = "judge of a recording"
_LATER: Final = 2.0
_JUDGE_SECONDS: Final = 3.0
_AGAIN: Final = 1.5
"""How much longer a recording has to be to be judged again, after no refusal and after one. Before the first
time is known, judging is taken to need so many seconds of a processor."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why evidence gives no prediction.

    Attributes:
        why: a sentence.
        lasting: a longer recording of the same load would be refused too.
    """

    why: str
    lasting: bool


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges evidence that is being written.

    Attributes:
        refusal_of: why it is not enough; None where it gives a prediction, or where that is not known. It is
            called in another thread, while more is written.
        decides: the recording ends as soon as it is enough, not by the recorder's own measures.
    """

    refusal_of: Callable[[Path], Refusal | None]
    decides: bool = False


def is_judging() -> bool:
    """Return whether a judge of this process is still at work, perhaps of a recording that has ended."""
    return any(thread.name.startswith(_THREAD) for thread in threading.enumerate())


class Outlook:
    """Decides with a judge when a recording ends.

    Args:
        judge: asked; None leaves the decision as it is.
        write: writes all that waits, and returns the folder.
        asked_seconds: how long the user wants to record; then nothing is ended early, only said.
        progress: is told.

    Attributes:
        refusal: the last one.
        judge_seconds: processor time that judging took the last time.
    """

    def __init__(
        self,
        judge: Judge | None,
        write: Callable[[], Path],
        *,
        asked_seconds: float | None,
        progress: Progress,
    ) -> None:
        self._judge = judge
        self._write = write
        self._asked_seconds = asked_seconds
        self._progress = progress
        self._due_seconds = LEAST_SECONDS
        self.judge_seconds = _JUDGE_SECONDS
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=_THREAD)
        self._asked: Future[Refusal | None] | None = None
        self.refusal: Refusal | None = None

    def decided(self, reason: str | None, now: float, *, may_ask: bool = True) -> str | None:
        """Return why the recording is over, or None.

        Args:
            reason: why it would be by itself.
            now: seconds since it began.
            may_ask: whether the judge may begin now, who takes up to seconds of a processor.
        """
        if self._judge is None or reason not in (None, "enough"):
            return reason
        decides = self._judge.decides
        if self._asked is None:
            due = now >= self._due_seconds or not (decides or reason is None or self.refusal is not None)
            if due and may_ask:
                self._asked = self._thread.submit(self._judged, self._judge, self._write())
            return None
        if not self._asked.done():
            return None
        before = self.refusal
        self._take()
        self._due_seconds = now * (_LATER if self.refusal is None else _AGAIN)
        if self.refusal is None:
            return "enough" if decides else reason
        # Not at the first look: what is in the way may pass, as VACUUM does.
        if self._asked_seconds is None and self.refusal.lasting and before is not None and before.lasting:
            return UNPREDICTABLE
        if before is None:
            self._progress.note(f"not enough yet: {self.refusal.why}")
        return None

    def end(self, *, wait: bool = False) -> Refusal | None:
        """Ask no more, and return the last refusal; `wait` waits for an answer of a judge that decides."""
        decides = self._judge is not None and self._judge.decides
        if self._asked is not None and (self._asked.done() or (wait and decides)):
            self._take()
        self._thread.shutdown(wait=False)
        return self.refusal

    def _judged(self, judge: Judge, evidence: Path) -> Refusal | None:
        begun = time.process_time()
        try:
            return judge.refusal_of(evidence)
        finally:
            self.judge_seconds = time.process_time() - begun

    def _take(self) -> None:
        assert self._asked is not None
        self.refusal, self._asked = self._asked.result(), None
