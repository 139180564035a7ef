"""What the server's sessions do right now, counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

from pgsweep.pg.queries import load
from pgsweep.records.top import TopBackends, TopWait

_WAITS_KEPT = 5


def read_backends(connection: psycopg.Connection[Any], max_connections: int) -> TopBackends:
    """Return how many client backends there are, and what the active ones wait for.

    Args:
        connection: in autocommit mode; its own backend is not counted.
        max_connections: the setting of that name.

    Raises:
        psycopg.Error: the connection was lost.
    """
    states: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    text = load("backends", connection.info.server_version)
    for state, kind, event, backends in connection.execute(text, prepare=True):
        states[state or "hidden"] += backends
        if state == "active":
            waits["running" if kind is None else f"{kind}:{event}"] += backends
    return TopBackends(
        total=states.total(),
        active=states["active"] + states["fastpath function call"],
        idle=states["idle"],
        idle_in_transaction=states["idle in transaction"] + states["idle in transaction (aborted)"],
        hidden=states["hidden"] + states["disabled"],
        max_connections=max_connections,
        waits=[TopWait(event=event, backends=count) for event, count in waits.most_common(_WAITS_KEPT)],
    )
