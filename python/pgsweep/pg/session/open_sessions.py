"""The sessions of this process, so that none leaves a statement in a server, or is in the way of the next.

A server that executes a statement does not notice that its client has gone until the statement is done.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import pq

_OPEN: Final[weakref.WeakSet[psycopg.Connection[Any]]] = weakref.WeakSet()
_LOCK: Final = threading.Lock()
"""Of the set: some threads open sessions while others end."""

_PATIENCE_SECONDS: Final = 2.0
"""How long at most is waited until the servers have taken the requests to cancel."""

_ENDING_SECONDS: Final = 1.0
"""A session that was closed counts for the limits of its role and database until its backend has exited."""

_last_closed = float("-inf")


def note(session: psycopg.Connection[Any]) -> None:
    """Have `end_sessions` end a session."""
    with _LOCK:
        _OPEN.add(session)


def note_closed() -> None:
    """Remember that a session of this process was closed just now."""
    global _last_closed  # noqa: PLW0603 (as the set: of this process)
    _last_closed = time.monotonic()


def one_is_ending() -> bool:
    """Return whether a session of this process was closed so lately that its backend may not have exited."""
    return time.monotonic() - _last_closed < _ENDING_SECONDS


def end_sessions() -> None:
    """End all sessions, and first their statements; for the end of the process.

    Threads that wait for a statement get an error, and can send no other one in that session.
    """
    with _LOCK:
        sessions = [session for session in _OPEN if not session.closed]
    threads = [threading.Thread(target=_end, args=[session], daemon=True) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_SECONDS)


def _end(session: psycopg.Connection[Any]) -> None:
    if session.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
        with suppress(psycopg.Error):
            session.cancel_safe(timeout=1)
    # Not closed: the thread whose session it is may be in libpq with it.
    with (
        suppress(psycopg.Error, OSError, ValueError),
        socket.socket(fileno=os.dup(session.fileno())) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)
