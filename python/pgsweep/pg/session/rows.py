"""Queries of pg/queries executed, each in the text that the server understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from pgsweep.pg.queries import load

Values = Sequence[Any] | Mapping[str, Any] | None


def all_rows(connection: psycopg.Connection[Any], name: str, values: Values = None) -> list[tuple[Any, ...]]:
    """Execute the query that the server understands, and return its rows."""
    return connection.execute(load(name, connection.info.server_version), values).fetchall()


def one_row(connection: psycopg.Connection[Any], name: str, values: Values = None) -> tuple[Any, ...]:
    """Execute a query that has a row for certain, and return it."""
    row: tuple[Any, ...] | None = connection.execute(
        load(name, connection.info.server_version), values
    ).fetchone()
    assert row is not None
    return row
