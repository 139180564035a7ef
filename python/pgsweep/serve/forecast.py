"""The curves of all servers, and the advice that follows, made in a process of its own: nothing waits for it.

That process runs at a lower priority and predicts one window at a time: `python -m
pgsweep.serve.forecast` reads a request a line and writes an answer a line, and ends with the end of its
input, so also when the process that started it is killed. How often a window is predicted anew follows
from what that takes (turns.py). The advice needs the curve at other sizes, so it is a second prediction, made
more rarely. Nothing is predicted again before there is more evidence.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from pgsweep.errors import PgsweepError
from pgsweep.host.allocator import limit_arenas, return_freed_memory
from pgsweep.records.advice import AdviceResult
from pgsweep.records.prediction import PredictResult
from pgsweep.records.serve import ServeAdvised, ServeChange, ServeCurve, ServeVerification
from pgsweep.serve.recording import pieces_of
from pgsweep.serve.turns import VERIFYING, WINDOWS, Turn, Turns

_EVERY: Final = {900: 60.0, 3600: 300.0, 86400: 1800.0}
"""How often each window is predicted anew, where that costs little."""

_ADVICE_EVERY: Final = {900: 300.0, 3600: 900.0, 86400: 1800.0}
"""How often the advice is decided anew."""

_VERIFY_SECONDS: Final = 600.0
"""How often it is checked whether shared_buffers was changed, and the prediction held."""

_SOON_SECONDS: Final = 15.0
"""How soon it is tried again where nothing could be predicted."""

_LONGEST_PROCESSOR_SECONDS: Final = 120.0
"""A prediction that takes more of a processor is given up."""

_LONGEST_SECONDS: Final = 1800.0
"""So is one that has not ended after this time, however little of a processor it got."""

_QUIET_SECONDS: Final = 120.0
"""Where nothing was recorded for so long, it is said."""

_SLACK_SECONDS: Final = 5.0
"""Evidence that is shorter than a window by more than this is all that there is."""

_AGAIN_SECONDS: Final = 30.0
_LONGEST_PAUSE_SECONDS: Final = 1800.0
"""After a failure it is tried again in a minute, then after twice as long, up to this."""

_PENDING_SECONDS: Final = 60.0
"""How often a change is looked at that cannot be verified yet."""

_LEAST_SECONDS: Final = 1800.0
"""With less evidence than this it is not looked for the least memory: nobody buys memory for half an hour."""

_FIRST_SECONDS: Final = 30.0
"""From less evidence than this nothing is predicted."""

_EARLY_SECONDS: Final = 120.0
"""With less evidence than this, a prediction that is refused says no more than that it is too early."""

_NICE: Final = 5
"""Priority of the process that predicts. Beside 24 busy programs on two processors it gets the 3% of one that
it may take; at 10 it got less than 1%, and the first curve took more than twenty minutes."""

_ARENAS: Final = 2
"""Arenas of the C library's allocator in the process that predicts."""


class Request(msgspec.Struct, frozen=True):
    """One window of one server's evidence.

    Attributes:
        window_seconds: its length; 0 asks whether the prediction held after the last change.
        advise: the advice is wanted too.
        most_seconds: of a processor; the process ends by SIGPROF when it has taken them.
    """

    folder: str
    window_seconds: int
    advise: bool = False
    most_seconds: float = _LONGEST_PROCESSOR_SECONDS


class Answer(msgspec.Struct, frozen=True):
    """What was predicted and advised, or why nothing could be.

    Attributes:
        early: because there is too little evidence yet.
        processor_seconds: that the process took since its last answer, or since its start.
        failed: it was not answered, and why.
        change: of shared_buffers, the last one.
    """

    covered_seconds: float = 0.0
    result: PredictResult | None = None
    why: str | None = None
    processor_seconds: float = 0.0
    advice: AdviceResult | None = None
    advised_bytes: int | None = None
    verification: ServeVerification | None = None
    early: bool = False
    failed: str | None = None
    change: ServeChange | None = None


class Forecasts:
    """Predicts the windows of servers in turn, in a thread and a process of its own.

    Args:
        folders: of the evidence, by the server's key.
        show: called with the key, each new curve, and the advice where it was decided anew.
        verified: called with the key and what is known of the last change of shared_buffers.
    """

    def __init__(
        self,
        folders: dict[str, Path],
        show: Callable[[str, ServeCurve, ServeAdvised | None], None],
        verified: Callable[[str, Answer], None],
    ) -> None:
        self._folders = folders
        self._show = show
        self._verified = verified
        self._failures: dict[tuple[str, int], int] = {}
        self._curves: dict[Turn, ServeCurve] = {}
        self._seen: dict[Turn, Seen] = {}
        self._most_seconds = _LONGEST_PROCESSOR_SECONDS
        self._longest_seconds = _LONGEST_SECONDS
        self._advice_due = {(key, window): 0.0 for key in folders for window in WINDOWS}
        self._turns = Turns(folders, time.monotonic(), _SOON_SECONDS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forecasts", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._reported = 0.0

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
        while not self._ended.is_set():
            turn = self._turns.next(time.monotonic())
            if turn is None:
                self._ended.wait(1.0)
            else:
                self._take(turn)

    def _take(self, turn: Turn) -> None:
        """Predict a window, or verify; without more evidence than the last time there is nothing to ask."""
        begin = time.monotonic()
        pieces = pieces_of(self._folders[turn.key])
        seen = None if not pieces else _seen(pieces[-1])
        if seen is None or self._seen.get(turn) == seen:
            self._turns.took(turn, begin, 0.0, _SOON_SECONDS)
            self._say_waiting(turn, seen)
        elif (answer := self._answer(turn.key, turn.window)) is not None:
            for each in _answered_by(answer, turn):
                if answer.failed is None:
                    self._seen[each] = seen
                self._shown(each, answer, begin, answer.processor_seconds if each == turn else 0.0)

    def _say_waiting(self, turn: Turn, seen: Seen | None) -> None:
        """Say that nothing newer is shown because nothing was recorded."""
        curve = self._curves.get(turn)
        if curve is None or seen is None or curve.waits_since is not None:
            return
        if time.time() - seen.at < _QUIET_SECONDS:
            return  # a recording writes its parts a minute apart at most
        curve = self._curves[turn] = msgspec.structs.replace(curve, waits_since=seen.at)
        self._show(turn.key, curve, None)

    def _shown(self, turn: Turn, answer: Answer, begin: float, taken: float) -> None:
        """Show an answer, and note when the next is wanted.

        Args:
            turn: that is answered.
            answer: to it.
            begin: when it was asked.
            taken: seconds of a processor to be paid off before the next.
        """
        key, window = turn.key, turn.window
        now = time.time()
        self._failures[key, window] = 0 if answer.failed is None else self._failures.get((key, window), 0) + 1
        after_failure = min(
            _AGAIN_SECONDS * 2 ** min(self._failures[key, window], 10), _LONGEST_PAUSE_SECONDS
        )
        if window == VERIFYING:
            if answer.failed is None:
                self._verified(key, answer)
            pending = answer.change is not None and answer.verification is None and answer.why is None
            pause = after_failure if answer.failed else _PENDING_SECONDS if pending else _VERIFY_SECONDS
            self._turns.took(turn, begin, taken, pause)
            return
        advised = None
        if answer.advice is not None:
            pause = _pause(_ADVICE_EVERY[window], answer.covered_seconds)
            self._advice_due[key, window] = time.monotonic() + pause
            advised = ServeAdvised(
                window_seconds=window,
                covered_seconds=answer.covered_seconds,
                at=now,
                size_bytes=answer.advised_bytes,
                result=answer.advice,
            )
        pause = _SOON_SECONDS if answer.result is None else _pause(_EVERY[window], answer.covered_seconds)
        pause = pause if answer.failed is None else after_failure
        paced = self._turns.took(turn, begin, taken, pause)
        curve = ServeCurve(
            window_seconds=window,
            covered_seconds=answer.covered_seconds,
            at=now,
            result=answer.result,
            why=answer.why,
            early=answer.early,
            failed=answer.failed,
            failed_at=None if answer.failed is None else now,
            next_at=now + paced - (time.monotonic() - begin),
            seconds=answer.processor_seconds,
            paced_seconds=paced if paced > pause + 1.0 else None,
        )
        if answer.failed is None:
            self._curves[turn] = curve
        self._show(key, curve, advised)

    def _answer(self, key: str, window: int) -> Answer | None:
        advise = window != VERIFYING and time.monotonic() >= self._advice_due[key, window]
        try:
            answer = self._asked(Request(str(self._folders[key]), window, advise, self._most_seconds))
        except (OSError, msgspec.DecodeError, ValueError) as error:
            code, taken = self._end_process()
            if self._ended.is_set():
                return None
            if code == -signal.SIGPROF:
                why = f"it took more than {self._most_seconds:.0f} s of a processor"
            elif code == -signal.SIGALRM:
                why = f"it took longer than {self._longest_seconds:.0f} s"
            elif code is not None:
                why = f"its process ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
            else:
                why = str(error) or type(error).__name__
            return Answer(failed=why, processor_seconds=taken)
        self._reported += answer.processor_seconds
        return answer

    def _asked(self, request: Request) -> Answer:
        process = self._process
        if process is not None and process.poll() is not None:
            self._end_process()
            process = None
        if process is None:
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
        limit = threading.Timer(self._longest_seconds, process.send_signal, [signal.SIGALRM])
        limit.start()
        try:
            return msgspec.json.decode(process.stdout.readline(), type=Answer)
        finally:
            limit.cancel()

    def _end_process(self) -> tuple[int | None, float]:
        """End the process that predicts.

        Returns:
            Its exit code if it had ended by itself, and the seconds of a processor that no answer has named.
        """
        process, self._process = self._process, None
        if process is None:
            return None, 0.0
        code, before = None, _children_seconds()
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(0.5)  # its pipe is closed before it has ended
        process.kill()
        process.wait()
        taken = max(0.0, _children_seconds() - before - self._reported)
        self._reported = 0.0
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        return code, taken


class Seen(NamedTuple):
    """How much evidence there was.

    Attributes:
        piece: name of the newest piece.
        at: when something was last written to it, in seconds since 1970.
    """

    piece: str
    at: float


def _answered_by(answer: Answer, turn: Turn) -> list[Turn]:
    """Return a turn, and those of other windows that have the same evidence: all that there is."""
    covered = answer.covered_seconds if answer.failed is None and turn.window != VERIFYING else 0.0
    others = (window for window in WINDOWS if window != turn.window)
    whole = [Turn(turn.key, window) for window in others if 0 < covered < window - _SLACK_SECONDS]
    return [turn, *whole] if covered < turn.window - _SLACK_SECONDS else [turn]


def _seen(piece: Path) -> Seen | None:
    """Return what there is of the newest piece; None where it has just been removed."""
    try:
        # A part is renamed into the folder of its table, which changes that folder.
        return Seen(piece.name, max(path.stat().st_mtime for path in [piece, *piece.iterdir()]))
    except OSError:
        return None


def _children_seconds() -> float:
    """Return the processor time of all children that have ended, of which there are few others."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _pause(usual_seconds: float, covered_seconds: float) -> float:
    """Return the pause until the same is asked again: with little evidence, until it has doubled."""
    return min(usual_seconds, max(_EVERY[WINDOWS[0]], covered_seconds))


def predict_pieces(pieces: Sequence[Path], window_seconds: float, *, advise: bool = False) -> Answer:
    """Return the prediction from the newest `window_seconds` of evidence, or why there is none.

    Args:
        pieces: folders of evidence in the order of recording.
        window_seconds: length of the window.
        advise: the advice is wanted too.
    """
    from pgsweep.advice.gather import advise_window
    from pgsweep.evidence.joined import JoinedEvidence
    from pgsweep.sizing.predict import WindowModel

    covered = 0.0
    try:
        joined = JoinedEvidence.of(pieces, window_seconds)
        covered = joined.meta.seconds
        if covered < _FIRST_SECONDS:
            return _too_early(covered)
        window = WindowModel(joined)
        # What comes from disk is simulated for the advice alone: that takes a quarter of the time of a curve.
        result = window.judge().record()
        if covered < _EARLY_SECONDS and result.verdict.level == "refused":
            return _too_early(covered)
        advice, size = (
            advise_window(window, pieces[-1].name, least=covered >= _LEAST_SECONDS)
            if advise
            else (None, None)
        )
        return Answer(covered_seconds=covered, result=result, advice=advice, advised_bytes=size)
    except PgsweepError as error:
        if 0 < covered < _EARLY_SECONDS:
            return _too_early(covered)
        why = error.message + (f" ({error.cause})" if error.cause else "")
        return Answer(covered_seconds=covered, why=why)


def _too_early(covered: float) -> Answer:
    why = f"there are {covered:.0f} s of evidence, and a first curve takes a minute or two"
    return Answer(covered_seconds=covered, early=True, why=why)


def _answered(request: Request) -> Answer:
    folder = Path(request.folder)
    if request.window_seconds:
        return predict_pieces(pieces_of(folder), request.window_seconds, advise=request.advise)
    from pgsweep.serve.verification import seen_change, verify_change

    pieces = pieces_of(folder)
    change = seen_change(pieces)
    try:
        return Answer(verification=verify_change(folder, pieces), change=change)
    except (PgsweepError, OSError) as error:
        return Answer(why=error.message if isinstance(error, PgsweepError) else str(error), change=change)


def _serve_requests() -> None:
    os.nice(_NICE)
    with suppress(AttributeError, OSError):
        # With SCHED_BATCH it does not preempt a running process.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    limit_arenas(_ARENAS)
    # What libraries may print must not get between the answers.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    named = 0.0
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        signal.setitimer(signal.ITIMER_PROF, request.most_seconds)
        answer = _answered(request)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        taken = time.process_time()
        answer = msgspec.structs.replace(answer, processor_seconds=taken - named)
        named = taken
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()
        del answer
        _return_memory()


def _return_memory() -> None:
    """Return what the last answer needed: it is some hundred MB, and the next request comes in a minute."""
    gc.collect()
    # Arrow has an allocator of its own; where nothing was read yet, it is not loaded.
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    return_freed_memory()


if __name__ == "__main__":
    _serve_requests()
