"""psql's connection options, with their meanings; libpq parses whatever they hold.

Environment variables, service files, password files and URIs are libpq's business: what is given here goes
over them, what is not given is left to it.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pgsweep.errors import ConnectionFailed, UsageError

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


def connection_options(function: F) -> F:
    """Give a command psql's connection options and DBNAME; they arrive as host, port, username and so on."""
    decorators = (
        click.argument("database", metavar="[DBNAME]", required=False),
        click.option("-h", "--host", metavar="HOST", help="Server host or socket directory."),
        click.option("-p", "--port", metavar="PORT", help="Server port."),
        click.option("-U", "--username", metavar="NAME", help="User name in the database."),
        click.option("-d", "--dbname", metavar="DBNAME", help="Database, conninfo string or URI."),
        click.option("-w", "--no-password", is_flag=True, help="Never ask for a password."),
        click.option("-W", "--password", "ask_password", is_flag=True, help="Ask for a password at once."),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def conninfo_from(
    *,
    database: str | None,
    dbname: str | None,
    host: str | None,
    port: str | None,
    username: str | None,
    password: str | None = None,
) -> str:
    """Return one conninfo string of all that was given, parsed and escaped by libpq.

    Raises:
        UsageError: libpq cannot parse what was given, or the database was given twice.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo

    if database is not None and dbname is not None:
        raise UsageError(
            "the database is given twice",
            cause=f"`{database}` and `-d {dbname}`",
            hint="leave one of them out",
        )
    name = database if database is not None else dbname
    parts = {"host": host, "port": port, "user": username, "password": password}
    given: dict[str, Any] = {key: value for key, value in parts.items() if value is not None}
    base = ""
    if name is not None:
        # PQconnectdbParams with expand_dbname: a name with `=` or a URI's beginning is a conninfo string.
        # https://www.postgresql.org/docs/current/libpq-connect.html
        if "=" in name or name.startswith(("postgresql://", "postgres://")):
            base = name
        else:
            given["dbname"] = name
    try:
        return make_conninfo(base, **given)
    except ProgrammingError as error:
        raise UsageError(
            f"libpq cannot read the connection string: {str(error).strip()}",
            hint="write a database name, `host=db1 dbname=shop` or `postgresql://user@host:port/dbname`",
        ) from error


class Target:
    """The server that the options name, and whether we may ask for its password."""

    def __init__(self, *, no_password: bool, ask_password: bool, **names: str | None) -> None:
        if no_password and ask_password:
            raise UsageError("-w and -W contradict each other", hint="leave one of them out")
        self._names = names
        self._may_ask = not no_password and sys.stdin is not None and sys.stdin.isatty()
        self._password = _asked() if ask_password else None

    def use(self, feature: Callable[[str], R]) -> R:
        """Call the feature with the conninfo; ask for the password once where the server wants one.

        Raises:
            PgsweepError: whatever the feature raises.
        """
        try:
            return feature(self.conninfo)
        except ConnectionFailed as error:
            if self._password is not None or not self._may_ask or not _wants_password(error):
                raise
        self._password = _asked()
        return feature(self.conninfo)

    @property
    def conninfo(self) -> str:
        """The conninfo string, with the password where one was asked for."""
        return conninfo_from(
            database=self._names.get("database"),
            dbname=self._names.get("dbname"),
            host=self._names.get("host"),
            port=self._names.get("port"),
            username=self._names.get("username"),
            password=self._password,
        )


def _wants_password(error: BaseException) -> bool:
    """Return whether libpq itself says that the connection failed for want of a password."""
    cause: BaseException | None = error
    while cause is not None:
        connection = getattr(cause, "pgconn", None)
        if connection is not None:
            return bool(getattr(connection, "needs_password", False))
        cause = cause.__cause__
    return False


def _asked() -> str:
    return getpass.getpass("Password: ", stream=sys.stderr)
