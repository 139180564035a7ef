"""Statements of the user's, run by EXPLAIN (ANALYZE, BUFFERS) in transactions that are rolled back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import errors as sqlstates
from psycopg import sql

from pgsweep.errors import LacksPrivilege, OnStandby, PgsweepError, UsageError
from pgsweep.pg.catalog.grants import grant_to_session
from pgsweep.pg.queries import load
from pgsweep.pg.session.connect import Connection, end_without_client, read_user_path, set_for_session
from pgsweep.pg.session.failures import first_line
from pgsweep.pg.session.userpath import schemas_of_path
from pgsweep.plain import decode_name, sql_identifier
from pgsweep.units import format_many

_LOCK_TIMEOUT_MS: Final = 2000
_NAMES: Final = "42"
"""Class 42 of the SQLSTATEs: syntax errors, names that do not exist."""

_ABSENT: Final = {"42P01", "3F000"}
"""There is no such table, or schema."""

_PARAMETERS: Final = {"42P02", "42P18", "08P01"}
"""The SQLSTATEs of parameters that are too few or too many: undefined_parameter, indeterminate_datatype
(parse_param.c), protocol_violation (postgres.c, exec_bind_message)."""


_WORD: Final = re.compile(r'"((?:[^"]|"")+)"|([^\W\d][\w$]*)')
"""A name in a statement, quoted or not."""

_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")


class Explainer:
    """Runs statements in a session of their own, under the user's search_path.

    Args:
        session: not for inspection, in autocommit mode.
        timeout_seconds: the server ends a run that takes longer.
        allow_writes: in transactions that may write; they are rolled back all the same.

    Raises:
        MissingAbility: writes are allowed, and the server is a standby.
    """

    def __init__(self, session: Connection, *, timeout_seconds: float, allow_writes: bool) -> None:
        if allow_writes and _is_standby(session):
            raise OnStandby(
                "the server is a standby",
                cause="it takes no writes",
                hint="connect to the primary: -h HOST, or leave --allow-writes out",
            )
        self._session = session
        self._mode = sql.SQL("READ WRITE" if allow_writes else "READ ONLY")
        timeout_ms = round(timeout_seconds * 1000)
        set_for_session(session, lock_timeout=str(_LOCK_TIMEOUT_MS), statement_timeout=str(timeout_ms))
        end_without_client(session)
        self._search_path = read_user_path(session)

    def run(self, statement: str, parameters: Sequence[str | None] = ()) -> dict[str, Any]:
        """Execute a statement once; return the report of EXPLAIN: `Plan`, `Planning`, times.

        Args:
            statement: one statement that EXPLAIN takes.
            parameters: the values of $1, $2 and so on, as text, or None for NULL; the server decides
                their types.

        Raises:
            UsageError: EXPLAIN does not take the statement, or it would write.
            MissingAbility: the role lacks a privilege.
            PgsweepError: it took too long, or failed.
        """
        session = self._session
        session.execute(sql.SQL("BEGIN {}").format(self._mode))
        try:
            # Prepared, so that the server takes one statement and no more.
            text = f"EXPLAIN (ANALYZE, BUFFERS, SUMMARY, FORMAT JSON) {statement.strip().rstrip(';')}"
            with session.cursor() as cursor:
                cursor.execute("SELECT pg_catalog.set_config('search_path', %s, true)", [self._search_path])
            with psycopg.RawCursor(session) as cursor:
                row = cursor.execute(text.encode(), list(parameters) or None, prepare=True).fetchone()
        except sqlstates.ReadOnlySqlTransaction as error:
            raise UsageError(
                "the statement would write",
                cause=first_line(error),
                hint="--allow-writes runs it in a transaction that is rolled back; dead rows and WAL remain",
            ) from error
        except sqlstates.QueryCanceled as error:
            raise PgsweepError(
                "the statement took too long",
                cause=first_line(error),
                hint="give it more time: --timeout 1h",
            ) from error
        except sqlstates.InsufficientPrivilege as error:
            session.execute(b"ROLLBACK")
            raise LacksPrivilege(
                f"role `{session.info.user}` may not run the statement",
                cause=first_line(error),
                hint=f"{_grants(session, statement)}, or name a role that may: -U NAME",
            ) from error
        except psycopg.Error as error:
            if session.closed:
                raise
            if error.sqlstate in _PARAMETERS or (parameters and "$" not in statement):
                raise _wrong_parameters(statement, len(parameters), error) from error
            hint = "it must be one statement that EXPLAIN takes; try it in psql first"
            if error.sqlstate in _ABSENT:
                hint = (
                    f"this is database `{session.info.dbname}`: name another, -d NAME, or the table's schema"
                )
            kind = UsageError if (error.sqlstate or "").startswith(_NAMES) else PgsweepError
            raise kind(
                "the server refuses the statement",
                cause=first_line(error),
                hint=hint,
            ) from error
        finally:
            if not session.closed and session.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                session.execute(b"ROLLBACK")
        assert row is not None
        report: dict[str, Any] = row[0][0] if not isinstance(row[0], str) else json.loads(row[0])[0]
        return report


def _wrong_parameters(statement: str, given: int, error: psycopg.Error) -> UsageError:
    """Return the error of a statement that takes other parameters than were given.

    The server's message names its protocol and a prepared statement of the driver's: it is told only where it
    says what is not known of a parameter.
    """
    takes = max((int(number) for number in re.findall(r"\$(\d{1,5})", statement)), default=0)
    hint = "give a value for each of $1, $2 and so on, in order: --param 42 --param 'a text'"
    if not takes:
        hint = "write the statement in single quotes: in double quotes the shell replaces $1"
    elif given == takes:
        hint = "name its type in the statement: $1::int"
    return UsageError(
        f"the statement has {format_many(takes, 'parameter')}, and {format_many(given, 'value')} "
        f"{'was' if given == 1 else 'were'} given",
        cause=None if error.sqlstate == "08P01" else first_line(error),
        hint=hint,
    )


def _grants(session: Connection, statement: str) -> str:
    """Return how the role gets what it lacks on what a statement names; in words where that is not found."""
    words = [quoted.replace('""', '"') or plain.lower() for quoted, plain in _WORD.findall(statement)]
    rights = [right for right in _RIGHTS if right == "SELECT" or right.lower() in words]
    try:
        path = schemas_of_path(session)
        query = load("lacking", session.info.server_version)
        rows = session.execute(query, [words, path, rights]).fetchall()
    except (psycopg.Error, PgsweepError):
        rows = []
    lacking = []
    for what, schema, name, arguments in rows:
        whole = ".".join(sql_identifier(decode_name(part)) for part in (schema, name) if part is not None)
        lacking.append(f"{what} {whole}" + ("" if arguments is None else f"({decode_name(arguments)})"))
    return grant_to_session(session, *lacking) if lacking else "grant it what it lacks"


def _is_standby(session: Connection) -> bool:
    row = session.execute(b"SELECT pg_catalog.pg_is_in_recovery()").fetchone()
    return row is not None and bool(row[0])
