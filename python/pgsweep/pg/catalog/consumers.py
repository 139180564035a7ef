"""Who uses the server: processes that execute a statement now, and the counters of pg_stat_statements.

Statements are named by their ids (compute_query_id). Texts are read only where they are asked for, and given
only of SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES and WITH: in these pg_stat_statements writes $1 for
constants (pg_stat_statements.c, generate_normalized_query). Other texts may hold passwords.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from pgsweep.errors import LacksExtension, MissingAbility, PgsweepError
from pgsweep.pg.administrator import as_superuser
from pgsweep.pg.alter_system import refuse_kept_elsewhere
from pgsweep.pg.catalog.abilities import read_extension
from pgsweep.pg.catalog.manager import read_sources
from pgsweep.pg.catalog.provider import provider_if_known
from pgsweep.pg.queries import compose, load
from pgsweep.pg.session.failures import first_line
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.trust import require_extension, statements_to_create
from pgsweep.plain import decode_name, decode_nullable

EXTENSION: Final = "pg_stat_statements"
_LIBRARIES: Final = "shared_preload_libraries"
_NORMALISED: Final = re.compile(r"\s*\(*\s*(select|insert|update|delete|merge|values|with)\b", re.I)


class Active(NamedTuple):
    """A process that executes a statement now.

    Attributes:
        query_id: None where the server computes none, or none yet.
        reads: it waits for a block to be read.
    """

    pid: int
    user: str | None
    database: str | None
    query_id: int | None
    reads: bool


class Statement(NamedTuple):
    """The counters of one statement of one user in one database.

    Attributes:
        user: None where it was dropped; so is `database`.
        query_id: None where the role may not see what others execute.
        temporary: blocks of temporary files that were read or written.
    """

    user: str | None
    database: str | None
    query_id: int | None
    calls: float
    execution_seconds: float
    hits: float
    reads: float
    temporary: float
    user_oid: int = 0
    database_oid: int = 0


def read_active(connection: psycopg.Connection[Any]) -> list[Active]:
    """Return the processes that execute a statement now; those that this role may see.

    Raises:
        PgsweepError: it took too long.
    """
    query = load("active", connection.info.server_version)
    with explained():
        rows = connection.execute(query, prepare=True).fetchall()
    return [
        Active(pid, decode_nullable(user), decode_nullable(database), query_id, reads)
        for pid, user, database, query_id, reads in rows
    ]


class Statements:
    """Reads pg_stat_statements.

    Args:
        connection: a session in a database that has the extension.

    Raises:
        MissingAbility: it is not there, not for this role, or not trusted.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        with explained():
            _require_loaded(connection)
            schema = require_extension(connection, EXTENSION, instead="sample the activity, as is done now")
        version_num = connection.info.server_version
        self._query = compose("statements", version_num, schema=schema).encode()
        self._evicted = compose("statements_evicted", version_num, schema=schema).encode()
        self._texts = compose("statement_texts", version_num, schema=schema).encode()

    def read(self) -> list[Statement]:
        """Return the counters of all statements.

        Raises:
            MissingAbility: the extension is not loaded, or too old.
            PgsweepError: it took too long.
        """
        with _usable(self._connection):
            rows = self._connection.execute(self._query).fetchall()
        return [
            Statement._make(
                [
                    decode_nullable(row[0]),
                    decode_nullable(row[1]),
                    row[2],
                    *(max(0.0, float(value)) for value in row[3:8]),
                    *row[8:],
                ]
            )
            for row in rows
        ]

    def evicted(self) -> tuple[int, str]:
        """Return how often entries were given up so far, and how many are kept (`pg_stat_statements.max`).

        Raises:
            MissingAbility, ConnectionFailed, PgsweepError: as for `read`.
        """
        with _usable(self._connection):
            row = self._connection.execute(self._evicted).fetchone()
        assert row is not None
        return row[0], row[1]

    def texts(self, query_ids: Iterable[int]) -> dict[int, str]:
        """Return the normalised texts of statements, as far as they are known and hold no constants.

        Raises:
            MissingAbility, ConnectionFailed, PgsweepError: as for `read`.
        """
        with _usable(self._connection):
            rows = self._connection.execute(self._texts, [list(query_ids)]).fetchall()
        found = {query_id: decode_name(text) for query_id, text in rows}
        return {
            query_id: " ".join(text.split())[:400] if _NORMALISED.match(text) else "(not a query)"
            for query_id, text in found.items()
        }


@contextmanager
def _usable(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Turn failures of pg_stat_statements into errors whose hint corrects them."""
    with explained():
        try:
            yield
        except psycopg.errors.ObjectNotInPrerequisiteState as error:
            raise _not_loaded(connection, []) from error
        except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction) as error:
            raise LacksExtension(
                "the extension pg_stat_statements is older than its server, or was dropped",
                cause=first_line(error),
                hint=as_superuser(connection, [f"ALTER EXTENSION {EXTENSION} UPDATE"]),
            ) from error


def _require_loaded(connection: psycopg.Connection[Any]) -> None:
    """Check that the server has loaded the extension's library, where its files are installed.

    Raises:
        MissingAbility: it has not: the extension counts nothing then, and its view is an error.
    """
    # Its settings are there only if it was loaded at the server's start (pg_stat_statements.c, _PG_init).
    if f"{EXTENSION}.max" in read_sources(connection, [f"{EXTENSION}.max"]):
        return
    found = read_extension(connection, EXTENSION, EXTENSION)
    if found.available is not None:
        raise _not_loaded(
            connection, [] if found.created is not None else statements_to_create(connection, EXTENSION)
        )


def _not_loaded(connection: psycopg.Connection[Any], create: Sequence[str]) -> MissingAbility:
    """Return the error of a library that is not loaded; its hint has all steps, also those of `create`."""
    steps = [_how_to_load(connection), "restart the server"]
    if create:
        steps.append(f"then {as_superuser(connection, create)}")
    return LacksExtension(
        f"{EXTENSION} is not loaded by the server",
        cause="it is not in shared_preload_libraries",
        hint="; ".join(steps),
    )


def _how_to_load(connection: psycopg.Connection[Any]) -> str:
    """Return how the library is added to those that the server loads at its start."""
    provider = provider_if_known(connection)
    try:
        sources = read_sources(connection)
        loaded = sources.get(_LIBRARIES)
        if provider is None and loaded is not None and not loaded.pending:
            named = [name.strip().strip('"') for name in loaded.value.split(",")]
            names = [name for name in [*named, EXTENSION] if name]
            refuse_kept_elsewhere(connection, {_LIBRARIES: ",".join(names)})
            # One literal for all would be the name of one library (guc.c, flatten_set_variable_args).
            values = sql.SQL(", ").join(map(sql.Literal, names)).as_string(None)
            return as_superuser(connection, [f"ALTER SYSTEM SET {_LIBRARIES} = {values}"], here=True)
    except MissingAbility as elsewhere:
        return elsewhere.hint or elsewhere.message
    except (psycopg.Error, PgsweepError):
        pass  # of a session in a failed transaction
    # What else is there would be lost, where this role does not see it.
    where = "" if provider is None else f" of {provider.name}"
    return f"add {EXTENSION} to the setting {_LIBRARIES}{where}"
