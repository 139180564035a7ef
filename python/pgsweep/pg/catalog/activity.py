"""Who each process of the server is: pg_stat_activity, for whatever role asks."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from pgsweep.pg.queries import is_ours
from pgsweep.pg.session.conninfo import APPLICATION, LAB
from pgsweep.pg.session.rows import all_rows
from pgsweep.plain import decode_name, decode_nullable


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """One process as the server knows it.

    Attributes:
        pid: in the server's own PID namespace.
        kind: as `backend_type`: `client backend`, `checkpointer`; empty where hidden.
        hidden: the role may not see what this process is and does.
        own: the session that asks.
    """

    pid: int
    kind: str
    user: str | None
    database: str | None
    application: str | None
    state: str | None
    query: str | None
    hidden: bool
    own: bool

    @property
    def pgsweep(self) -> bool:
        """Whether it is a session of pgsweep, of this process or another, such as `serve` or `top`.

        By its name, or, where the user gave it another, by the statement that it sent last. The sessions by
        which `lab` loads a server are none.
        """
        name = self.application or ""
        named = name == APPLICATION or name.startswith(f"{APPLICATION} ")
        return self.own or (named and name != LAB) or (self.query is not None and is_ours(self.query))


def read_activity(connection: psycopg.Connection[Any]) -> dict[int, Activity]:
    """Return the server's processes by their ids, as it knows them."""
    rows = all_rows(connection, "activity")
    return {
        row[0]: Activity(
            pid=row[0],
            kind=decode_name(row[1]),
            user=decode_nullable(row[2]),
            database=decode_nullable(row[3]),
            application=decode_nullable(row[4]),
            state=row[5] if row[5] is None else str(row[5]),
            query=decode_nullable(row[6]),
            hidden=row[7],
            own=row[8],
        )
        for row in rows
    }
