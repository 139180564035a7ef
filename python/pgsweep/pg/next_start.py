"""What a server takes over when it starts next: settings that wait for that, and what its files cannot say.

Where a file has a line that is no setting, a reload takes nothing over, and a start ends at it; where a value
cannot be, that value alone is left out, and a start ends at it too (guc-file.l, `ProcessConfigFileInternal`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.errors import InsufficientPrivilege

from pgsweep.errors import MissingAbility
from pgsweep.pg.manager import read_sources
from pgsweep.pg.queries import load
from pgsweep.plain import decode_nullable


@dataclass(frozen=True, slots=True)
class NextStart:
    """What comes with the next start.

    Attributes:
        pending: values by name that differ from those in force, as the files have them; None where this role
            may not read the files, or the files have none, and the default comes back.
        errors: what is wrong in the files: where, and what; empty where this role may not read them.
        errors_end_reloads: one of these keeps a reload from taking anything over.
    """

    pending: dict[str, str | None]
    errors: list[str]
    errors_end_reloads: bool = False


def read_next_start(connection: psycopg.Connection[Any]) -> NextStart:
    """Return what comes with the next start of a server; what its role may not see is left out."""
    waiting = [name for name, one in read_sources(connection).items() if one.pending]
    pending: dict[str, str | None] = dict.fromkeys(waiting)
    errors, ends = [], False
    try:
        rows = connection.execute(load("file_settings", connection.info.server_version)).fetchall()
    except InsufficientPrivilege:
        return NextStart(pending, [])
    for name, value, file, line, error in rows:
        setting, where = decode_nullable(name), f"{decode_nullable(file)} line {line}"
        if setting in pending and (error is None or error == _NOT_NOW):
            pending[setting] = decode_nullable(value)
        elif error is not None:
            errors.append(f"{where}: {f'{setting}: ' if setting else ''}{error}")
            ends = ends or error != _NOT_NOW
    return NextStart(pending, errors, ends)


_NOT_NOW = "setting could not be applied"
"""Of a value that cannot be, and of one that waits for a restart; the server does not translate it."""


def refuse_where_files_are_wrong(connection: psycopg.Connection[Any]) -> None:
    """Refuse a server that would take over nothing, or would not start again.

    Raises:
        MissingAbility: its configuration files have errors.
    """
    found = read_next_start(connection)
    if found.errors:
        raise MissingAbility(
            "the server's configuration files have errors: it would not start again"
            + (", and a reload takes nothing over" if found.errors_end_reloads else ""),
            cause="; ".join(found.errors[:3]),
            hint="correct them first: SELECT * FROM pg_file_settings WHERE error IS NOT NULL",
        )
