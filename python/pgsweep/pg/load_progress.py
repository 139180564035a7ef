"""How far the server is with a load: its WAL, and the builds of indexes."""

from __future__ import annotations

import psycopg

from pgsweep.pg.connect import Connection
from pgsweep.pg.queries import load


def wal_position(connection: Connection) -> int | None:
    """Return where the server's WAL ends; None on a standby."""
    try:
        row = connection.execute(load("load_wal", connection.info.server_version).encode()).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else int(row[0])


def build_progress(connection: Connection, oid: int) -> list[tuple[str, float]]:
    """Return phase and share of each index build on a table."""
    found = []
    query = load("load_build_progress", connection.info.server_version).encode()
    for _, phase, blocks, all_blocks, tuples, all_tuples in connection.execute(
        query, {"oid": oid}
    ).fetchall():
        done, whole = (tuples, all_tuples) if all_tuples else (blocks, all_blocks)
        found.append((str(phase), done / whole if whole else 0.0))
    return found
