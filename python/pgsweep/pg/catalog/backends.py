"""What the server's sessions do right now, counted, and how many more it can spare."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

from pgsweep.pg.queries import load
from pgsweep.records.top import OpenTransaction, TopBackends, TopWait
from pgsweep.units import iso_time

_WAITS_KEPT = 5
_OLD_SECONDS = 1.5
"""Transactions that are younger are part of any load, and what they have read is little."""


def spared_connections(connection: psycopg.Connection[Any], wanted: int) -> int:
    """Return how many of the sessions that are wanted the server can spare: half of what is free, or one.

    The other half is left to the applications, and what is reserved for superusers to the superusers.

    Raises:
        psycopg.Error: the connection was lost.
    """
    row = connection.execute(load("free_connections", connection.info.server_version)).fetchone()
    return min(wanted, max(1, (row[0] if row is not None else 0) // 2))


def fewer_note(spared: int, wanted: int) -> str:
    """Report that the server can spare fewer sessions than are wanted."""
    return (
        f"{spared} of {wanted} sessions are used: half of the connections that the server has free; the "
        "others are left to applications"
    )


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
    older = connection.execute(
        load("open_transactions", connection.info.server_version), [_OLD_SECONDS], prepare=True
    )
    return TopBackends(
        uncounted=[
            OpenTransaction(pid, iso_time(since) or "", None if idle_since is None else iso_time(idle_since))
            for pid, since, idle_since in older
        ],
        total=states.total(),
        active=states["active"] + states["fastpath function call"],
        idle=states["idle"],
        idle_in_transaction=states["idle in transaction"] + states["idle in transaction (aborted)"],
        hidden=states["hidden"] + states["disabled"],
        max_connections=max_connections,
        waits=[TopWait(event=event, backends=count) for event, count in waits.most_common(_WAITS_KEPT)],
    )
