"""Names for the shell's completion: databases, and relations of one database."""

from __future__ import annotations

from pgsweep.pg.connect import connect, explained
from pgsweep.pg.queries import load


def read_database_names(conninfo: str, beginning: str, most: int) -> list[str]:
    """Return the databases that begin like this and may be connected to.

    Raises:
        PgsweepError: the server cannot be asked.
    """
    return _names(conninfo, "complete_databases", beginning, most)


def read_relation_names(conninfo: str, beginning: str, most: int) -> list[str]:
    """Return the relations of the session's database that begin like this, as SQL writes them.

    Raises:
        PgsweepError: the server cannot be asked.
    """
    return _names(conninfo, "complete_relations", beginning, most)


def _names(conninfo: str, query: str, beginning: str, most: int) -> list[str]:
    with connect(conninfo) as connection, explained():
        rows = connection.execute(load(query, connection.info.server_version), [beginning, most]).fetchall()
    return [bytes(name).decode("utf-8", "backslashreplace") for (name,) in rows]
