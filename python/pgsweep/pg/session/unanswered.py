"""Connections that a server took and never made a session of: few are left to it, however often it is asked.

A server forks a process for each connection. Where that hangs before the session begins, for example behind
a lock on a catalog that every session reads (VACUUM FULL pg_authid), it does not notice that its client gave
up, and keeps a place among max_connections until authentication_timeout, a minute by default. Whoever tries
again meanwhile takes one place after the other from the applications.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Final

from pgsweep.errors import ConnectionFailed

NO_SESSION: Final = "the server took the connection and began no session"
NO_SESSION_CAUSE: Final = "it hangs, or another session locks a catalog that every session reads at its start"
NO_SESSION_HINT: Final = "does psql get in? Else see the server's log"

_MOST: Final = 2
_PLACE: Final = ("service", "host", "hostaddr", "port")

_seconds = 60.0
"""How long the server keeps one (authentication_timeout)."""

_lock = threading.Lock()
_given_up: defaultdict[tuple[str, ...], deque[float]] = defaultdict(lambda: deque(maxlen=_MOST))


def note(parameters: Mapping[str, str]) -> None:
    """Remember that a connection with these parameters was given up before its session began."""
    with _lock:
        _given_up[_place(parameters)].append(time.monotonic())


def require_answered(parameters: Mapping[str, str]) -> None:
    """Check that not as many as the server may be left with were given up within the last minute.

    Raises:
        ConnectionFailed: so many were.
    """
    with _lock:
        times = _given_up.get(_place(parameters))
        if times is None or len(times) < _MOST or time.monotonic() - times[0] > _seconds:
            return
    error = ConnectionFailed(NO_SESSION, cause=NO_SESSION_CAUSE, hint=NO_SESSION_HINT)
    error.code = "no-session"
    raise error


def _place(parameters: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(parameters.get(name, "") for name in _PLACE)
