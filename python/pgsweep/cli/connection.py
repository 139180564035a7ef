"""psql's connection options, with their meanings; libpq parses whatever they hold.

libpq reads environment variables, service files, password files and URIs. What is given here overrides
them; what is not given is left to libpq.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import click

from pgsweep.cli.common import options
from pgsweep.cli.completing import database_names
from pgsweep.cli.settings import Settings
from pgsweep.errors import ConnectionFailed, ConnectionLost, PgsweepError, UsageError
from pgsweep.plain import shell_word

R = TypeVar("R")


place_flags = options(
    click.option("-h", "--host", metavar="HOST", is_eager=True, help="Server host or socket directory."),
    click.option("-p", "--port", metavar="PORT", is_eager=True, help="Server port."),
    click.option("-U", "--username", metavar="NAME", is_eager=True, help="User name in the database."),
    click.option(
        "-d",
        "--dbname",
        metavar="DBNAME",
        is_eager=True,
        help="Database, conninfo string or URI.",
        shell_complete=database_names,
    ),
)
"""Those of psql's options that name the server.

They are read before all others, so that a hint about one of those can name the server."""

connection_flags = options(
    place_flags,
    click.option("-w", "--no-password", is_flag=True, help="Never ask for a password."),
    click.option(
        "-W", "--password", "ask_password", is_flag=True, help="Ask for a password before connecting."
    ),
)
"""psql's, for a command whose arguments name something else."""

connection_options = options(
    click.argument(
        "database", metavar="[DBNAME]", required=False, is_eager=True, shell_complete=database_names
    ),
    connection_flags,
)
"""psql's connection options and DBNAME; they arrive as host, port, username and so on."""


class Target:
    """The server that the options name, and whether we may ask for its password."""

    def __init__(self, *, no_password: bool, ask_password: bool, **names: str | None) -> None:
        if no_password and ask_password:
            raise UsageError("-w and -W contradict each other", hint="leave one of them out")
        self._names = _without_overruled_defaults(names)
        self._may_ask = not no_password and sys.stdin is not None and sys.stdin.isatty()
        self._password = _asked() if ask_password else None
        context = click.get_current_context(silent=True)
        settings = None if context is None else context.find_object(Settings)
        if settings is not None:
            settings.named = self.options

    def use(self, feature: Callable[[str], R]) -> R:
        """Call the feature with the conninfo; ask for the password once where the server wants one.

        Raises:
            PgsweepError: whatever the feature raises.
        """
        try:
            return feature(self.conninfo)
        except ConnectionLost as error:
            from pgsweep.pg.session.session_end import say_if_dropped

            say_if_dropped(error, self.conninfo)
            raise
        except ConnectionFailed as error:
            if self._password is not None or not self._may_ask or error.code != "no-password":
                raise
        self._password = _asked()
        return feature(self.conninfo)

    @property
    def is_named(self) -> bool:
        """Whether a server or a database was named, in any way."""
        return any(self._names.values())

    def options(self) -> dict[str, str]:
        """Return psql's options for what was given, without password; none for what libpq cannot parse."""
        if self.is_named:  # else the driver, which takes longest of all to load, is not needed
            from pgsweep.pg.session.conninfo import server_options

            with suppress(PgsweepError):
                return server_options(self.conninfo)
        return {}

    @property
    def server(self) -> str:
        """Where the server is, in words and without password: `db1, port 5432`."""
        from pgsweep.pg.session.conninfo import place_of

        return place_of(self.conninfo)

    @property
    def conninfo(self) -> str:
        """The conninfo string, with the password where one was asked for.

        Raises:
            UsageError: libpq cannot parse what was given, or the database was given twice.
        """
        from pgsweep.pg.session.conninfo import build_conninfo

        names = self._names
        database = names.get("database")
        if database is not None and names["dbname"] is not None:
            raise UsageError(
                "the database is given twice",
                cause="once by itself and once by -d",
                hint="leave one of them out" + _as_relation(database),
            )
        return build_conninfo(
            database or "",
            host=names["host"],
            port=names["port"],
            user=names["username"],
            dbname=names["dbname"],
            password=self._password,
        )


def _without_overruled_defaults(names: dict[str, str | None]) -> dict[str, str | None]:
    """Return the options without those of the configuration that DBNAME on the command line overrules.

    A database name overrides only the database; a connection string or URI overrides all connection settings.
    """
    context = click.get_current_context(silent=True)
    database = names.get("database")
    if context is None or database is None:
        return names
    whole = "=" in database or database.startswith(("postgresql://", "postgres://"))
    overruled = ("host", "port", "username", "dbname") if whole else ("dbname",)
    source = click.core.ParameterSource.DEFAULT_MAP
    return {
        name: None if name in overruled and context.get_parameter_source(name) is source else value
        for name, value in names.items()
    }


def _as_relation(word: str) -> str:
    """Return how the command names a relation, which is often written in the place of DBNAME."""
    context = click.get_current_context(silent=True)
    names = {parameter.name for parameter in context.command.params} if context is not None else set()
    if "relations" not in names or "=" in word or ":/" in word:
        return ""
    return f"; a relation is named by --relations {shell_word(word)}"


def _asked() -> str:
    try:
        return getpass.getpass("Password: ", stream=sys.stderr)
    except EOFError:
        raise UsageError(
            "no password was given",
            cause="there is no terminal, and stdin ended before a password",
            hint="leave out -W; set PGPASSWORD, or add a line to ~/.pgpass",
        ) from None
