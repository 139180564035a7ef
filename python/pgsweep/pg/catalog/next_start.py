"""What a server takes over when it starts next: settings that wait for that, and what its files cannot say.

Where a file has a line that is no setting, a reload takes nothing over, and a start ends at it; where a value
cannot be, that value alone is left out, and a start ends at it too (guc-file.l, `ProcessConfigFileInternal`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.errors import InsufficientPrivilege

from pgsweep.errors import MissingAbility
from pgsweep.host.patroni import member_of
from pgsweep.host.postmaster import search
from pgsweep.pg.catalog.grants import grant_to_session
from pgsweep.pg.catalog.manager import Source, read_sources
from pgsweep.pg.catalog.server import read_postmaster
from pgsweep.pg.session.rows import all_rows
from pgsweep.plain import decode_nullable, sql_identifier

_NOT_NOW: Final = "setting could not be applied"
"""Of a value that cannot be, and of one that waits for a restart; the server does not translate it."""

TO_READ_FILES: Final = (
    ("relation", "pg_catalog.pg_file_settings"),
    ("function", "pg_catalog.pg_show_all_file_settings()"),
)
"""What a role needs rights on to read the files' settings: system_views.sql revokes both."""

_RIGHTS: Final = {
    "parameter": "ALTER SYSTEM ON PARAMETER {}",
    "relation": "SELECT ON {}",
    "function": "EXECUTE ON FUNCTION {}",
    "role": "{}",
}


@dataclass(frozen=True, slots=True)
class NextStart:
    """What comes with the next start.

    Attributes:
        pending: values by name that differ from those in force, as the files have them; None where this role
            may not read the files, or the files have none, and the default comes back.
        errors: what is wrong in the files: where, and what; empty where this role may not read them.
        errors_end_reloads: one of these keeps a reload from taking anything over.
        unseen: why the values are not seen and how the role may read them; None where it may.
    """

    pending: dict[str, str | None]
    errors: list[str]
    errors_end_reloads: bool = False
    unseen: str | None = None


def right_to(what: tuple[str, str]) -> str:
    """Return as GRANT has it what a role needs for a parameter, a relation, a function or as another role."""
    kind, name = what
    return _RIGHTS[kind].format(sql_identifier(name) if kind == "parameter" else name)


def read_next_start(connection: psycopg.Connection[Any]) -> NextStart:
    """Return what comes with the next start of a server; what its role may not see is left out."""
    sources = read_sources(connection)
    pending: dict[str, str | None] = dict.fromkeys(name for name, one in sources.items() if one.pending)
    pending |= _given_by_patroni(connection, sources)
    errors, ends = [], False
    try:
        rows = all_rows(connection, "file_settings")
    except InsufficientPrivilege:
        enable = grant_to_session(connection, *map(right_to, TO_READ_FILES))
        return NextStart(pending, [], unseen=f"this role may not read pg_file_settings; {enable}")
    for name, value, file, line, error, waits in rows:
        setting, where = decode_nullable(name), f"{decode_nullable(file)} line {line}"
        if setting is not None and (
            (setting in pending and error in (None, _NOT_NOW)) or (waits and error == _NOT_NOW)
        ):
            pending[setting] = decode_nullable(value)
        elif error is not None:
            errors.append(f"{where}: {f'{setting}: ' if setting else ''}{error}")
            ends = ends or error != _NOT_NOW
    return NextStart(pending, errors, ends)


def _given_by_patroni(connection: psycopg.Connection[Any], sources: Mapping[str, Source]) -> dict[str, str]:
    """Return what Patroni gives on the command line at the next start: the server cannot know of it.

    Only settings that are given there now, and words as values: another program may answer for Patroni.
    """
    name = sources.get("cluster_name")
    if name is None or name.source != "command line":
        return {}
    pid = search(*read_postmaster(connection)).pid
    member = None if pid is None else member_of(pid, name.value)
    changed = {} if member is None else member.pending_restart_reason
    values = {setting: str(one.new_value) for setting, one in changed.items() if one.new_value is not None}
    return {
        setting: value
        for setting, value in values.items()
        if setting in sources and sources[setting].source == "command line" and re.fullmatch(r"\w+", value)
    }


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
