"""ALTER SYSTEM: read what it has set, check whether it may be used, and use it.

It writes postgresql.auto.conf in the data directory, which comes after postgresql.conf. Each statement is
whole or not at all; it cannot be in a transaction with another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from pgsweep.errors import KeptElsewhere, LacksPrivilege, MissingAbility, OnStandby, PgsweepError
from pgsweep.host.place import why_auto_conf_is_closed
from pgsweep.host.postmaster import search
from pgsweep.pg.administrator import connect_as_superuser
from pgsweep.pg.catalog.abilities import read_session
from pgsweep.pg.catalog.grants import grant_to_session
from pgsweep.pg.catalog.manager import Source, find_manager, read_sources
from pgsweep.pg.catalog.next_start import TO_READ_FILES, refuse_where_files_are_wrong, right_to
from pgsweep.pg.catalog.provider import Wanted, read_provider
from pgsweep.pg.catalog.server import read_postmaster
from pgsweep.pg.queries import load
from pgsweep.pg.session.rows import all_rows, one_row
from pgsweep.units import in_unit

_DISABLED: Final = "ALTER SYSTEM is disabled on this server (allow_alter_system is off)"
_OUTSIDE: Final = "its settings are managed from outside"


@dataclass(frozen=True, slots=True)
class SettingState:
    """One setting.

    Attributes:
        name: of the setting.
        value: in force, as SHOW gives it.
        kept: what postgresql.auto.conf says; None where it says nothing.
    """

    name: str
    value: str
    kept: str | None


_BESIDES: Final = (
    *TO_READ_FILES,
    ("function", "pg_catalog.pg_reload_conf()"),
    ("role", "pg_read_all_settings"),
)
"""What is used besides ALTER SYSTEM."""

_PARAMETERS_SINCE: Final = 150000


def check_allowed(
    connection: psycopg.Connection[Any],
    wanted: Mapping[str, str] | None = None,
    *,
    only_superuser: bool = False,
) -> None:
    """Refuse a server on which ALTER SYSTEM cannot or should not be used.

    Args:
        connection: a session on it.
        wanted: values by name, for the hint where a provider changes settings in another way.
        only_superuser: more is to be done than setting them.

    Raises:
        MissingAbility: it is a standby, the role may not set these, or the server forbids it.
    """
    row = one_row(connection, "alter_system_allowed")
    in_recovery, superuser, allowed = row
    if in_recovery:
        raise OnStandby(
            "the server is a standby: its settings are not changed from here",
            cause="its settings should follow those of its primary",
            hint="run it on the primary, or paste the lines of --format postgresql.conf",
        )
    provider = read_provider(connection)
    if provider is not None and not superuser:
        raise KeptElsewhere(
            f"{provider.name} does not allow ALTER SYSTEM",
            cause="the provider keeps the server's settings",
            hint=f"set it {provider.settings(_for_provider(connection, wanted or {'NAME': 'VALUE'}))}",
        )
    if not superuser:
        _refuse_without_rights(connection, list(wanted or ()), only_superuser=only_superuser)
    if wanted:
        refuse_kept_elsewhere(connection, wanted)
        refuse_where_files_are_wrong(connection)
    if not allowed:
        hint = "put the lines of --format postgresql.conf where they are managed"
        raise KeptElsewhere(_DISABLED, cause=_OUTSIDE, hint=hint)


def lacking_rights(connection: psycopg.Connection[Any], names: Sequence[str]) -> list[str] | None:
    """Return what the role lacks to set parameters by ALTER SYSTEM, as GRANT has it; of a superuser nothing.

    None before 15, where nobody can grant it (GRANT ... ON PARAMETER).
    """
    version = connection.info.server_version
    if version < _PARAMETERS_SINCE:
        return None
    asked = [*(("parameter", name) for name in names), *_BESIDES]
    columns = [list(column) for column in zip(*asked, strict=True)]
    rows = connection.execute(load("alter_system_lacking", version), columns).fetchall()
    return [right_to(one) for one in asked if one in rows]


def _refuse_without_rights(
    connection: psycopg.Connection[Any], names: Sequence[str], *, only_superuser: bool
) -> None:
    """Refuse a role that is no superuser, but one that was granted these parameters and what else is used.

    Raises:
        MissingAbility: it may not set them.
    """
    lacking = None if only_superuser else lacking_rights(connection, names)
    if lacking == []:
        return
    as_one = connect_as_superuser(read_session(connection))
    hint = f"{as_one}, or paste the lines of --format alter-system"
    if lacking is None:
        cause = "ALTER SYSTEM, and seeing what it has set before, needs a superuser"
    else:
        cause = f"it is no superuser, and lacks {', '.join(lacking)}"
        hint = f"{as_one}; or {grant_to_session(connection, *lacking)}"
    raise LacksPrivilege("this role may not change the server's settings", cause=cause, hint=hint)


def refuse_kept_elsewhere(connection: psycopg.Connection[Any], wanted: Mapping[str, str]) -> None:
    """Refuse a server on which ALTER SYSTEM, by whichever role, would fail, have no effect or not last.

    Args:
        connection: a session on it.
        wanted: values by name; not empty.

    Raises:
        MissingAbility: something else keeps its settings; the hint is where they are changed.
    """
    pid = search(*read_postmaster(connection)).pid
    sources = read_sources(connection, list(wanted))
    manager = find_manager(sources, pid)
    if manager is not None:
        raise KeptElsewhere(
            f"{manager.name} keeps the settings of this server: what ALTER SYSTEM writes would be "
            "overwritten, or "
            "hold on this member alone",
            cause=manager.because,
            hint=f"set it {manager.settings(wanted)}",
        )
    if "allow_alter_system" in sources and sources["allow_alter_system"].value == "off":
        lines = ", ".join(f"{name} = '{value}'" for name, value in wanted.items())
        raise MissingAbility(_DISABLED, cause=_OUTSIDE, hint=f"set it where they are managed: {lines}")
    _refuse_without_effect(sources, wanted)
    _refuse_read_only(sources, pid)


def _refuse_without_effect(sources: Mapping[str, Source], wanted: Mapping[str, str]) -> None:
    """Refuse settings that are given on the command line, which goes before postgresql.auto.conf.

    Raises:
        MissingAbility: one is.
    """
    given = {n: v for n, v in wanted.items() if n in sources and sources[n].source == "command line"}
    if not given:
        return
    others = {name: value for name, value in wanted.items() if name not in given}
    line = " ".join(f"-c {name}={value}" for name, value in given.items())
    rest = "; ".join(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in others.items())
    are = "is" if len(given) == 1 else "are"
    raise KeptElsewhere(
        f"{', '.join(given)} {are} given on the command line of the server: ALTER SYSTEM would have no "
        "effect",
        cause="the command line goes before postgresql.auto.conf",
        hint=f"change it where the server is started (command: of a container, ExecStart of a unit): {line}"
        + (f"; what is not given there can be set: {rest}" if rest else ""),
    )


def _refuse_read_only(sources: Mapping[str, Source], pid: int | None) -> None:
    """Refuse a server whose postgresql.auto.conf is seen to be read-only, or mounted.

    It is replaced by a new file and was opened for writing before (file_utils.c, `durable_rename`), so each
    makes ALTER SYSTEM fail.

    Raises:
        MissingAbility: it is.
    """
    folder = sources["data_directory"].value if "data_directory" in sources else None
    if pid is None or (why := why_auto_conf_is_closed(pid, folder)) is None:
        return
    raise MissingAbility(
        f"postgresql.auto.conf cannot be written: {why}",
        cause="ALTER SYSTEM writes it; who closed it manages the settings in another way",
        hint="put the lines of --format postgresql.conf where they are managed",
    )


def _for_provider(connection: psycopg.Connection[Any], wanted: Mapping[str, str]) -> dict[str, Wanted]:
    """Return the values as providers take them: with a unit, or as a number in the setting's own."""
    rows = all_rows(connection, "setting_units", [list(wanted)])
    known = {name: (unit, restart) for name, unit, restart in rows}
    found = {}
    for name, value in wanted.items():
        unit, restart = known.get(name, (None, False))
        found[name] = Wanted(value, in_unit(value, unit), restart)
    return found


def read_states(connection: psycopg.Connection[Any], names: Sequence[str]) -> list[SettingState]:
    """Return the settings of these names; one that this version does not have is missing."""
    rows = all_rows(connection, "alter_system", [list(names)])
    return [SettingState(name=name, value=value, kept=kept) for name, value, kept in rows]


def statement(name: str, value: str | None) -> sql.Composed:
    """Return the statement that sets a value, or, for None, resets the setting."""
    if value is None:
        return sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name))
    return sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value))


def alter_system(connection: psycopg.Connection[Any], name: str, value: str | None) -> None:
    """Set a value in postgresql.auto.conf, or, for None, remove it.

    Raises:
        PgsweepError: the server refuses the value.
    """
    try:
        connection.execute(statement(name, value))
    except psycopg.errors.InvalidParameterValue as error:
        raise PgsweepError(
            f"the server refuses {name} = {value}", cause=error.diag.message_primary
        ) from error
    except psycopg.DatabaseError as error:
        if "postgresql.auto.conf" not in (error.diag.message_primary or ""):
            raise
        # EACCES has the SQLSTATE of a missing privilege, but it is the server that lacks it.
        raise PgsweepError(
            "the server cannot write postgresql.auto.conf in its data directory",
            cause=error.diag.message_primary,
            hint="see owner, mode and free space there, as the server's user",
        ) from error


def reload(connection: psycopg.Connection[Any]) -> None:
    """Have the server read its configuration files again."""
    connection.execute("SELECT pg_catalog.pg_reload_conf()")
