"""How far the server is with a load: its WAL, and the builds of indexes."""

from __future__ import annotations

import psycopg

from pgsweep.pg.load.catalog import rows_of
from pgsweep.pg.session.connect import Connection


def wal_position(connection: Connection) -> int | None:
    """Return where the server's WAL ends; None on a standby."""
    try:
        [(position,)] = rows_of(connection, "load_wal")
    except psycopg.Error:
        return None
    return int(position)


def build_progress(connection: Connection, oid: int) -> list[tuple[str, float]]:
    """Return phase and share of each index build on a table."""
    found = []
    rows = rows_of(connection, "load_build_progress", oid=oid)
    for _, phase, blocks, all_blocks, tuples, all_tuples in rows:
        done, whole = (tuples, all_tuples) if all_tuples else (blocks, all_blocks)
        found.append((str(phase), done / whole if whole else 0.0))
    return found
