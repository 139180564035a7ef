"""The server that the cases of the model of load run on, and what is looked at in it."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from typing import Any

import psycopg

from pgsweep.pg.private.cluster import Cluster
from tests.fix_process import Patience
from tests.load.model_cases import OWNER, WRITER
from tests.load.model_oracle import Record
from tests.load.model_tables import KINDS, Column, Table, literal, quote

SETTINGS = {
    "shared_buffers": "16MB",
    "max_connections": "30",
    "autovacuum": "off",
    # The server is stopped at once, and what was committed must be there after it.
    "synchronous_commit": "on",
    "full_page_writes": "on",
}
DATABASE = "load_model"
PATIENCE_SECONDS = 60.0


class Server:
    """A server with a database for the cases, and what is looked at in it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.dump_program = str(cluster.bindir / "pg_dump")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING 'UTF8'")
            for role in (OWNER, WRITER):
                connection.execute(f"CREATE ROLE {role} LOGIN")
                connection.execute(f"GRANT CREATE ON DATABASE {DATABASE} TO {role}")
        self.version = cluster.version_num // 10000
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def conninfo(self) -> str:
        return self.cluster.conninfo(DATABASE)

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """Return a session that outlives the cases, and no crash."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.conninfo, autocommit=True)
        return self._connection

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Run statements, and return the rows of the last one."""
        cursor = self.connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []

    def crash(self) -> None:
        """Stop the server at once, as a crash does, and start it again."""
        if self._connection is not None:
            self._connection.close()
        self.cluster.stop(immediately=True)
        self.cluster.start()

    def schema(self) -> str:
        """Return all that pg_dump says of the database, without the rows."""
        done = subprocess.run(
            [self.dump_program, "--schema-only", "--dbname", self.conninfo],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        )
        return re.sub(r"(?m)^\\(un)?restrict .*$", "", done.stdout)

    def sessions(self) -> list[int]:
        """Return the other sessions of clients."""
        rows = self.ask(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid() ORDER BY pid"
        )
        return [pid for (pid,) in rows]

    def settle(self) -> None:
        """Wait until no other session is left."""
        end = Patience(PATIENCE_SECONDS)
        while left := self.sessions():
            assert end.left() > 0, f"sessions are left: {left}"
            time.sleep(0.005)

    def journal(self) -> bool:
        """Return whether a load has a journal in the database."""
        return bool(self.ask("SELECT 1 FROM pg_namespace WHERE starts_with(nspname::text, 'pgsweep')"))

    def rows(self, table: str, columns: list[str]) -> Counter[tuple[str | None, ...]]:
        """Return the rows of a table as texts, with how many there are of each."""
        words = ", ".join(f"{quote(name)}::text" for name in columns)
        return Counter(self.ask(f"SELECT {words} FROM {table}"))

    def binary(self, table: Table, columns: list[Column], records: list[Record]) -> bytes:
        """Return records in COPY's binary format."""
        kinds = {
            column.name: "int4range" if column.kind == "span" else KINDS[column.kind].sql
            for column in columns
        }
        # Of enums and domains what stands in the file is the text and the number.
        kinds = {
            name: {"{schema}.mood": "text", "{schema}.size": "int"}.get(kind, kind)
            for name, kind in kinds.items()
        }
        selects = [
            "SELECT " + ", ".join(f"{literal(record.row[name])}::{kind}" for name, kind in kinds.items())
            for record in records
        ] or ["SELECT " + ", ".join(f"NULL::{kind}" for kind in kinds.values()) + " WHERE false"]
        statement = f"COPY ({' UNION ALL '.join(selects)}) TO STDOUT (FORMAT binary)"
        with self.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            return b"".join(bytes(part) for part in copy)
