"""A table to load rows into, with three indexes and a foreign key, and a file of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from pgsweep.errors import ClusterError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.failures import first_line

PARENTS: Final = 100_000
COLUMNS: Final = "id, parent, code, at, price, note"

TABLE: Final = """
CREATE TABLE parent (id int PRIMARY KEY);
INSERT INTO parent SELECT generate_series(0, 99999);
CREATE TABLE items (id bigint PRIMARY KEY, parent int REFERENCES parent, code text, at timestamp,
  price numeric(10,2), note text);
CREATE INDEX items_code ON items (code);
CREATE INDEX items_at ON items (at, parent);
CREATE UNLOGGED TABLE bare (LIKE items);
"""

TRIGGER: Final = """
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER items_noted BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION noted();
"""

SERVER_SETTINGS: Final = {
    "max_wal_size": "8GB",
    "wal_level": "replica",
    # As on a production server: the settings that private clusters turn off are on.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
}


def write_rows(cluster: Cluster, path: Path, rows: int) -> None:
    """Write a CSV file of about 100 bytes a row, with keys in random order, as a server makes it.

    Raises:
        ClusterError: the server refuses it.
    """
    query = (
        f"COPY (SELECT g, (random() * {PARENTS - 1})::int, md5(g::text),"
        " '2024-01-01'::timestamp + random() * interval '365 days', (random() * 10000)::numeric(10,2),"
        f" 'note number ' || g FROM generate_series(1, {rows}) g ORDER BY hashint4(g)) TO STDOUT "
        "(FORMAT csv)"
    )
    with _copying(cluster, query) as copy, path.open("wb") as file:
        for block in copy:
            file.write(block)


def copy_rows(cluster: Cluster, path: Path, table: str) -> None:
    """Copy such a file into a table as it stands, as psql does.

    Raises:
        ClusterError: the server refuses it.
    """
    statement = f"COPY {table} ({COLUMNS}) FROM STDIN (FORMAT csv)"
    with _copying(cluster, statement) as copy, path.open("rb") as file:
        while block := file.read(1 << 20):
            copy.write(block)


@contextmanager
def _copying(cluster: Cluster, statement: str) -> Iterator[psycopg.Copy]:
    try:
        with (
            psycopg.connect(cluster.conninfo(), autocommit=True) as session,
            session.cursor() as cursor,
            cursor.copy(statement.encode()) as copy,
        ):
            yield copy
    except psycopg.Error as error:
        raise ClusterError("rows could not be copied", cause=first_line(error)) from error
