"""Queries that a user wrote: run read-only, with a limit of time and of rows.

The session's search_path is pg_catalog alone, as in all sessions of ours, so such a query names its relations
with their schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from pgsweep.errors import UsageError
from pgsweep.pg.session.connect import Connection, set_for_session
from pgsweep.pg.session.refusals import explained


def run_user_query(
    session: Connection, query: str, *, timeout_seconds: float, most_rows: int
) -> tuple[list[str], Sequence[Sequence[Any]]]:
    """Run one query in a read-only transaction; return the names of its columns, and its first rows.

    Args:
        session: for inspection, in autocommit mode.
        query: one SELECT, VALUES or TABLE statement; the server refuses more than one.
        timeout_seconds: the server ends a run that takes longer.
        most_rows: how many rows are taken.

    Raises:
        UsageError: it has more rows than that, or returns none at all.
        PgsweepError: it failed or took too long.
    """
    with explained():
        set_for_session(session, statement_timeout=str(max(1, round(timeout_seconds * 1000))))
        session.execute(b"BEGIN READ ONLY")
        try:
            # A cursor of the server: rows beyond the limit never come here.
            with psycopg.RawServerCursor(session, "pgsweep_user_query") as cursor:
                cursor.execute(query.strip().rstrip(";").encode())
                rows = cursor.fetchmany(most_rows + 1)
                names = [column.name for column in cursor.description or []]
        finally:
            if not session.closed:
                session.execute(b"ROLLBACK")
    if len(rows) > most_rows:
        raise UsageError(
            f"the query has more than {most_rows} rows", hint="limit it in SQL, or allow more: rows = 1000"
        )
    return names, rows
