"""Signals: the first ends a command in good order, a second one at once, and no statement stays on a server.

Python handles a signal between two instructions of the main thread, which may be in a call that takes long,
or wait for a server that does not answer. So a thread of its own hears of each signal as it comes
(`ended_for_sure`): SIGTERM and SIGHUP leave the servers three seconds to answer, a second signal ends the
process within two, whatever it is doing. What it leaves then is what `kill -9` leaves.

All of a command runs within `ended_for_sure`, `ended_like_interrupt`, `suspended_between_answers` and
`no_session_left` (app.py); what can end in better order than by an exception has `stoppable` or `held_back`
within these.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Final

from pgsweep.cli.settings import Settings
from pgsweep.errors import INTERRUPTED

_TERM_SECONDS: Final = 3.0
"""How long servers may take to answer after SIGTERM or SIGHUP."""

_END_SECONDS: Final = 1.5
"""How long the process may take to end after a second signal."""

_ANSWER_SECONDS: Final = 10.0
"""How long Ctrl-Z waits for answers that are on their way."""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_held = threading.Lock()
"""Taken while `held_back` runs its body."""

_RECORDING = "ending the recording, what was seen is being written"


@contextmanager
def stoppable(settings: Settings, ending: str = _RECORDING) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM and SIGHUP set; the work checks it and ends in good order.

    A second one raises KeyboardInterrupt at once. A signal that is ignored, such as SIGHUP under nohup, stays
    ignored. The former handlers are restored at the end.

    Args:
        settings: how to speak.
        ending: what is said at the first Ctrl-C.
    """
    stop = threading.Event()
    signals: queue.SimpleQueue[bool] = queue.SimpleQueue()
    is_first = True

    def handler(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_first
        if not is_first:
            raise KeyboardInterrupt
        is_first = False
        signals.put(True)
        settings.say(f"\n{ending}; Ctrl-C again ends it at once")

    def pass_on() -> None:
        if signals.get():
            stop.set()

    # Not by the handler: it runs between two instructions of the main thread, which may be in stop.wait() and
    # hold the event's lock, and would wait for itself. SimpleQueue.put is made to be called there.
    passing = threading.Thread(target=pass_on, name="signals", daemon=True)
    passing.start()
    try:
        with _handled(handler, *_ENDING):
            yield stop
    finally:
        signals.put(False)


@contextmanager
def held_back(settings: Settings, ending: str) -> Iterator[threading.Event]:
    """Give an event that Ctrl-C, SIGTERM and SIGHUP set, and let none of them end the body.

    For a change that must be whole or undone: the body is short, looks at the event and puts back what it
    did. It must not wait for the event: the handler sets it. A signal that is ignored (SIGHUP under nohup)
    stays so.

    Args:
        settings: how to speak.
        ending: what is said at the first signal.
    """
    stop = threading.Event()
    is_first = True

    def handler(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            stop.set()
            settings.say(f"\n{ending}")

    with _held, _handled(handler, *_ENDING):
        yield stop


@contextmanager
def ended_for_sure() -> Iterator[None]:
    """End the process soon after a second signal, and waiting for servers after a first SIGTERM or SIGHUP.

    `held_back` is waited for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, told = os.pipe()
    os.set_blocking(told, False)
    former = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    terminal = None
    with suppress(OSError, ValueError, termios.error):
        terminal = termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ is not None else None

    def listen() -> None:
        came: list[int] = []
        with os.fdopen(heard, "rb", buffering=0) as signals:
            while numbers := signals.read(64):
                came += [number for number in numbers if number in _ENDING]
                if len(came) == 1 and came[0] != signal.SIGINT:
                    _hurry(_TERM_SECONDS)
                if len(came) < 2:
                    continue
                _hurry(0.0)
                # Also where all is done by then, and the interpreter waits for a thread.
                time.sleep(_END_SECONDS)
                with _held:
                    _leave(terminal)

    threading.Thread(target=listen, name="ending", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(former)
        os.close(told)
        _hurry(None)


def _hurry(seconds: float | None) -> None:
    """Let no thread wait longer than that for a server; one that must be told what it did is waited for."""
    wire = sys.modules.get("pgsweep.pg.session.wire")
    if wire is not None and not _held.locked():
        wire.Wire.hurry(seconds)


def _leave(terminal: list[int | list[bytes | int]] | None) -> None:
    """End the process without waiting for anything, the terminal as it was found."""
    with suppress(OSError, termios.error):
        if terminal is not None:
            termios.tcsetattr(0, termios.TCSANOW, terminal)
        if os.isatty(1):
            os.write(1, b"\x1b[?1049l\x1b[?25h")
        os.write(2, b"\ninterrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def ended_like_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the body as Ctrl-C does, so that what it holds is given back.

    A signal that is ignored (SIGHUP under nohup) stays so.
    """

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(handler, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def suspended_between_answers() -> Iterator[None]:
    """Let Ctrl-Z suspend the process when no answer of a server is on its way.

    A server that cannot send the rest of an answer waits for as long as it takes: statement_timeout does not
    count meanwhile, and vacuum removes nothing that the statement's snapshot may see.
    """
    suspending = threading.Lock()

    def suspend() -> None:
        with suspending, ExitStack() as held:
            if (wire := sys.modules.get("pgsweep.pg.session.wire")) is not None:
                held.enter_context(wire.Wire.turns.none(_ANSWER_SECONDS))
            # To this thread: no other one goes on before it is handled.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def handler(_number: int, _frame: FrameType | None) -> None:
        if not suspending.locked():
            threading.Thread(target=suspend, name="suspending", daemon=True).start()

    with _handled(handler, signal.SIGTSTP):
        yield


@contextmanager
def no_session_left() -> Iterator[None]:
    """End the sessions, with the statements that they wait for, at the end of the body, however it ends.

    psycopg cancels the statement that the main thread waits for; those of other threads would go on in the
    server. Signals are ignored for these two seconds at most.
    """
    try:
        yield
    finally:
        # A command without a server has not loaded the driver.
        if (sessions := sys.modules.get("pgsweep.pg.session.open_sessions")) is not None:
            with _handled(lambda _number, _frame: None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                sessions.end_sessions()


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals within the body, but none that is ignored; the former handlers come back.

    Python handles signals in the main thread only; in another, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
    for number in former:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in former.items():
            signal.signal(number, old)
