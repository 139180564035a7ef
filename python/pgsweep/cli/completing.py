"""Names of databases and relations for the shell's completion, from the server that the words name so far.

Whatever goes wrong there are no names and no words: a shell that completes must not wait, nor be written to.
A password is never asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

_PATIENCE_SECONDS = 2
_MOST = 200


def database_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the databases that may be connected to and begin like this."""
    from pgsweep.pg.completing import read_database_names

    return _found(ctx, incomplete, read_database_names)


def relation_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the relations of the database, as SQL writes them, that begin like this."""
    from pgsweep.pg.completing import read_relation_names

    return _found(ctx, incomplete, read_relation_names)


def _found(
    ctx: click.Context, incomplete: str, read: Callable[[str, str, int], list[str]]
) -> list[CompletionItem]:
    from pgsweep.pg.connect import build_conninfo

    given = ctx.params
    try:
        conninfo = build_conninfo(
            str(given.get("database") or ""),
            host=given.get("host"),
            port=given.get("port"),
            user=given.get("username"),
            dbname=given.get("dbname"),
        )
        names = read(f"{conninfo} connect_timeout={_PATIENCE_SECONDS}", incomplete, _MOST)
    except Exception:
        return []
    # Control characters of a name would be the shell's.
    return [CompletionItem(name) for name in names if name.isprintable()]
