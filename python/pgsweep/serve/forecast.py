"""The curves of all servers, predicted in a process of its own, so that neither looks nor pages wait for it.

That process runs at a lower priority and predicts one window at a time: `python -m
pgsweep.serve.forecast` reads a request a line and writes an answer a line, and ends with the end of its
input, so also when the process that started it is killed. How often a window is predicted anew follows
from what that takes: together they keep to a share of one processor.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.errors import PgsweepError
from pgsweep.records.prediction import PredictResult
from pgsweep.records.serve import ServeCurve
from pgsweep.serve.recording import pieces_of

WINDOWS: Final = (900, 3600, 86400)
"""Lengths of the sliding windows in seconds."""

_EVERY: Final = {900: 60.0, 3600: 300.0, 86400: 1800.0}
"""How often each window is predicted anew, where that costs little."""

_SOON_SECONDS: Final = 15.0
"""How soon it is tried again where nothing could be predicted."""

_SHARE: Final = 0.25
"""Of one processor, at a lower priority, for the predictions of all servers together."""

_LONGEST_SECONDS: Final = 300.0


class Request(msgspec.Struct, frozen=True):
    """One window of one server's evidence."""

    folder: str
    window_seconds: int


class Answer(msgspec.Struct, frozen=True):
    """What was predicted, or why nothing could be."""

    covered_seconds: float = 0.0
    result: PredictResult | None = None
    why: str | None = None
    processor_seconds: float = 0.0


class Forecasts:
    """Predicts the windows of servers in turn, in a thread and a process of its own.

    Args:
        folders: of the evidence, by the server's key.
        show: called with the key and each new curve.
    """

    def __init__(self, folders: dict[str, Path], show: Callable[[str, ServeCurve], None]) -> None:
        self._folders = folders
        self._show = show
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forecasts", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; a prediction that is being made is given up."""
        self._ended.set()
        self._end_process()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _run(self) -> None:
        due = {(key, window): 0.0 for key in self._folders for window in WINDOWS}
        free = 0.0
        while not self._ended.is_set():
            now = time.monotonic()
            # Short windows first: they are what changes.
            ready = sorted((at, window, key) for (key, window), at in due.items() if at <= now)
            if not ready or now < free:
                self._ended.wait(1.0)
                continue
            _, window, key = min(ready, key=lambda item: (item[1], item[0]))
            begin = time.monotonic()
            pause = _SOON_SECONDS
            # Without a piece there is nothing to ask for.
            if pieces_of(self._folders[key]):
                curve = self._predicted(key, window)
                if curve is not None:
                    self._show(key, curve)
                    free = begin + curve.seconds / _SHARE
                    pause = _SOON_SECONDS if curve.result is None else _EVERY[window]
            due[key, window] = begin + pause

    def _predicted(self, key: str, window: int) -> ServeCurve | None:
        try:
            answer = self._asked(Request(str(self._folders[key]), window))
        except (OSError, msgspec.DecodeError, ValueError):
            self._end_process()
            if self._ended.is_set():
                return None
            answer = Answer(why="the prediction failed or took too long")
        return ServeCurve(
            window_seconds=window,
            covered_seconds=answer.covered_seconds,
            at=time.time(),
            result=answer.result,
            why=answer.why,
            seconds=answer.processor_seconds,
        )

    def _asked(self, request: Request) -> Answer:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                # -P: nothing is imported from the working directory.
                [sys.executable, "-P", "-m", "pgsweep.serve.forecast"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        process.stdin.flush()
        limit = threading.Timer(_LONGEST_SECONDS, process.kill)
        limit.start()
        try:
            return msgspec.json.decode(process.stdout.readline(), type=Answer)
        finally:
            limit.cancel()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()


def predict_pieces(pieces: Sequence[Path], window_seconds: float) -> Answer:
    """Return the prediction from the newest `window_seconds` of evidence, or why there is none."""
    from pgsweep.evidence.joined import JoinedEvidence
    from pgsweep.sizing.predict import predict_window

    covered = 0.0
    try:
        joined = JoinedEvidence.of(pieces, window_seconds)
        covered = joined.meta.seconds
        return Answer(covered_seconds=covered, result=predict_window(joined))
    except PgsweepError as error:
        why = error.message + (f" ({error.cause})" if error.cause else "")
        return Answer(covered_seconds=covered, why=why)


def _serve_requests() -> None:
    os.nice(5)
    # What libraries may print must not get between the answers.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        begin = time.process_time()
        answer = predict_pieces(pieces_of(Path(request.folder)), request.window_seconds)
        answer = msgspec.structs.replace(answer, processor_seconds=time.process_time() - begin)
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


if __name__ == "__main__":
    _serve_requests()
