"""Which server a session is on, among those that have one system identifier.

A copy of a data directory, a standby and a promoted standby have the system identifier of the original. What
belongs to one server (what its settings were, which part of its pool was read) is therefore kept with more:

- the data directory, and when it came to be: the ctime (stat(2)) of PG_VERSION, which no server writes. Every
  copy has another one. A restart, another port, a promotion, or a move within the file system leave it.
- the name of the host, because a snapshot of a whole volume keeps all of the above;
- the timeline, because a server that was promoted has gone its own way.

What the role may not ask is not compared. The address by which a server is reached says nothing: another port
may lead to the same server, and a tunnel at the same port to another.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import psycopg

from pgsweep.pg.catalog.server import read_cluster
from pgsweep.pg.queries import load
from pgsweep.plain import decode_nullable, shown


class ServerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One server; what is not known is None.

    Attributes:
        system_identifier: of the cluster.
        data_directory: as the server names it.
        born_seconds: when the data directory came to be, in seconds since 1970 by the clock of its host.
        host_name: of the server's host.
        timeline: as in the names of WAL files; None for a standby.
    """

    system_identifier: str | None
    data_directory: str | None
    born_seconds: int | None
    host_name: str | None
    timeline: str | None

    def words(self) -> str:
        """Return what is known of where the server is, to show."""
        parts = []
        if self.data_directory is not None:
            parts.append(f"data directory {shown(self.data_directory)}")
        if self.host_name:
            parts.append(f"host {shown(self.host_name)}")
        if self.timeline is not None:
            parts.append(f"timeline {_number(self.timeline)}")
        return ", ".join(parts) or "a server of which nothing is known but its cluster"


def read_identity(connection: psycopg.Connection[Any], *, with_host: bool = True) -> ServerIdentity:
    """Return which server a session is on, as far as its role may ask.

    Args:
        connection: a session, in autocommit mode: what it may not ask fails.
        with_host: ask for the name of the host too.
    """
    cluster, version = read_cluster(connection), connection.info.server_version
    row = connection.execute(load("server_place", version)).fetchone()
    assert row is not None
    data_directory, timeline, may_ask_age, may_ask_host = row
    return ServerIdentity(
        system_identifier=None if cluster is None else cluster[0],
        data_directory=decode_nullable(data_directory),
        born_seconds=_allowed(connection, "server_born") if may_ask_age else None,
        host_name=_allowed(connection, "server_host") if may_ask_host and with_host else None,
        timeline=timeline,
    )


def differences(kept: ServerIdentity, here: ServerIdentity) -> list[str]:
    """Return by what one server is known not to be another, in words; nothing where it may be the same."""
    found = []
    for what, was, now in (
        ("system identifier", kept.system_identifier, here.system_identifier),
        ("data directory", kept.data_directory, here.data_directory),
        ("host", kept.host_name, here.host_name),
        ("timeline", _number(kept.timeline), _number(here.timeline)),
    ):
        if was is not None and now is not None and was != now:
            found.append(f"its {what} is {shown(str(was))}, here it is {shown(str(now))}")
    was_born, born = kept.born_seconds, here.born_seconds
    if not found and was_born is not None and born is not None and was_born != born:
        found.append(
            f"its data directory is of {_time(was_born)}, the one here was copied at {_time(born)}, or given "
            "another owner or mode"
        )
    return found


def _allowed(connection: psycopg.Connection[Any], query: str) -> Any:
    """Return the one value of a query; None where the role, or the server itself, may not read it."""
    try:
        row = connection.execute(load(query, connection.info.server_version)).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return None
    return None if row is None else row[0]


def _number(timeline: str | None) -> int | str | None:
    """Return a timeline as PostgreSQL's messages have it; in names of files it is hexadecimal."""
    try:
        return None if timeline is None else int(timeline, 16)
    except ValueError:
        return timeline


def _time(seconds: int) -> str:
    if not 0 <= seconds < 1 << 35:  # a year with four digits
        return f"second {seconds}"
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
