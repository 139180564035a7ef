"""Names for the shell's completion, from the server that the words name: databases, relations, schemas.

If anything fails, there are no names and no message: the shell must not wait, and nothing may be
written to it. A password is never asked for.
"""

from __future__ import annotations

from typing import Literal

import click
from click.shell_completion import CompletionItem

_PATIENCE_SECONDS = 2
_MOST = 200


def database_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the databases that may be connected to and begin like this."""
    return _found(ctx, incomplete, "databases")


def relation_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the relations of the database, as SQL writes them, that begin like this."""
    return _found(ctx, incomplete, "relations")


def listed_relation_names(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return relations that begin like the last name of a list, each behind the names before it."""
    before, comma, begun = incomplete.rpartition(",")
    return [CompletionItem(before + comma + item.value) for item in _found(ctx, begun, "relations")]


def schema_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the schemas that begin like this."""
    return _found(ctx, incomplete, "schemas")


def _found(
    ctx: click.Context, incomplete: str, kind: Literal["databases", "relations", "schemas"]
) -> list[CompletionItem]:
    from pgsweep.pg.catalog.server import read_names_like
    from pgsweep.pg.session.connect import connect
    from pgsweep.pg.session.conninfo import build_conninfo
    from pgsweep.pg.session.refusals import explained

    given = ctx.params
    try:
        conninfo = build_conninfo(
            str(given.get("database") or ""),
            host=given.get("host"),
            port=given.get("port"),
            user=given.get("username"),
            dbname=given.get("dbname"),
        )
        with connect(f"{conninfo} connect_timeout={_PATIENCE_SECONDS}") as connection, explained():
            names = read_names_like(connection, kind, incomplete, _MOST)
    except Exception:
        return []
    # The shell would act on the control characters of a name.
    return [CompletionItem(name) for name in names if name.isprintable()]


def load_words(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return relations of the database, and leave files to the shell."""
    return [CompletionItem(incomplete, type="file"), *relation_names(ctx, parameter, incomplete)]
