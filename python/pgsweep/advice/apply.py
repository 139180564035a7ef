"""What is advised, written by ALTER SYSTEM, and taken back: `pgsweep advise --apply` and `--undo`.

What postgresql.auto.conf said before is kept in a file of the user's state folder, named by the cluster's
system identifier. It is written before the first statement, so an interrupted run can be undone. A
second --apply keeps what was before the first. The server is never restarted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.errors import MissingAbility, PgsweepError, UsageError
from pgsweep.files import make_private, read_private, remove_private, state_folder, write_whole
from pgsweep.pg.alter_system import SettingState, alter_system, check_allowed, read_states, reload, statement
from pgsweep.pg.catalog import read_cluster
from pgsweep.pg.connect import Connection, connect, set_for_session
from pgsweep.pg.refusals import explained
from pgsweep.plain import shell_word
from pgsweep.records.advice import AdviceResult, AppliedSetting
from pgsweep.units import parse_bytes

_RESTARTS: Final = frozenset({"shared_buffers", "huge_pages", "max_connections"})

_SHARED_MEMORY: Final = frozenset({"shared_buffers", "max_connections"})
"""The advised settings that take shared memory."""


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What undo needs: by setting, what postgresql.auto.conf said before, and what it was made to say."""

    schema: str = "pgsweep.advise-undo/1"
    before: dict[str, str | None]
    after: dict[str, str]


def to_apply(result: AdviceResult) -> dict[str, str]:
    """Return the server's settings that are advised, by name.

    Raises:
        UsageError: none is, or the kernel must be changed first.
    """
    wanted = {
        one.name: one.value
        for one in result.settings
        if one.action == "set" and one.where == "server" and one.value is not None
    }
    if not wanted:
        why = "the advice is to leave the server's settings as they are"
        if result.decision == "unknown":
            why = "what shared_buffers should be is not known"
        raise UsageError(f"there is nothing to apply: {why}", hint="see the reasons: pgsweep advise EVIDENCE")
    pages = next((one for one in result.settings if one.name == "vm.nr_hugepages"), None)
    setting = next((one.today for one in result.settings if one.name == "huge_pages"), None)
    if pages is not None and pages.action == "set" and setting == "on":
        raise UsageError(
            f"the kernel has {pages.today} huge pages and needs {pages.value} before the next start",
            cause="huge_pages is on: with fewer the server would not start",
            hint=f"sudo sysctl -w vm.nr_hugepages={pages.value}, then run it again",
        )
    if pages is None and setting == "on" and (grown := _grown(result)):
        raise UsageError(
            "whether the kernel has enough huge pages for the next start is not known",
            cause=f"huge_pages is on, and {grown} takes more shared memory: with too few the server "
            "would not start",
            hint="run it on the server's host as root, or count them there: sudo pgsweep hugepages "
            f"--shared-buffers {wanted.get('shared_buffers', 'SIZE')}; then paste the lines of --format "
            "alter-system",
        )
    return wanted


def _grown(result: AdviceResult) -> str | None:
    """Return the advised setting that increases shared memory, as `name = value`; None if none does."""
    for one in result.settings:
        if one.action != "set" or one.value is None or one.today is None:
            continue
        if one.name in _SHARED_MEMORY and parse_bytes(one.value) > parse_bytes(one.today):
            return f"{one.name} = {one.value}"
    return None


def apply(
    conninfo: str, wanted: dict[str, str], *, dry_run: bool = False, owner: str = "advise"
) -> list[AppliedSetting]:
    """Write settings by ALTER SYSTEM and reload, and return what was changed.

    Args:
        conninfo: of the server.
        wanted: values by name.
        dry_run: only say what would be done.
        owner: who changes them; each has a file of its own with what was before.

    Raises:
        MissingAbility: not on this server, or not as this role.
        PgsweepError: what was before cannot be kept, or the server refuses a value.
    """
    with connect(conninfo, inspection=False) as connection, explained():
        file = _checked(connection, owner, wanted)
        states = {state.name: state for state in read_states(connection, list(wanted))}
        unknown = sorted(wanted.keys() - states.keys())
        if unknown:
            raise MissingAbility(f"the server has no setting {', '.join(unknown)}")
        changes = [_change(states[name], value) for name, value in wanted.items()]
        if dry_run:
            return changes
        earlier = _read(file)
        kept = {name: state.kept for name, state in states.items()} | (
            {} if earlier is None else earlier.before
        )
        after = ({} if earlier is None else earlier.after) | wanted
        _write(file, _Kept(before=kept, after=after))
        _write_all(connection, wanted, owner)
        reload(connection)
    return changes


def _write_all(connection: Connection, wanted: dict[str, str], owner: str) -> None:
    """Write each setting; where one is refused, the error names those that are written."""
    written: list[str] = []
    for name, value in wanted.items():
        try:
            alter_system(connection, name, value)
        except PgsweepError as error:
            if written and owner == "advise":
                error.hint = (
                    f"{', '.join(written)} is in postgresql.auto.conf already, not in force; to put it back: "
                    "pgsweep advise --undo"
                )
            raise
        written.append(name)


def undo(
    conninfo: str, *, dry_run: bool = False, owner: str = "advise", also_changed: bool = False
) -> tuple[list[AppliedSetting], list[str]]:
    """Put back what was before; return what was changed, and the settings that others have changed since.

    Args:
        conninfo: of the server.
        dry_run: only say what would be done.
        owner: who changed them.
        also_changed: put back those that others have changed since, too.

    Raises:
        MissingAbility: not on this server, or not as this role.
        UsageError: nothing was applied to this server by this user.
    """
    with connect(conninfo, inspection=False) as connection, explained():
        file = _checked(connection, owner)
        kept = _read(file)
        if kept is None:
            raise UsageError(
                "nothing is known to undo on this server",
                cause=f"there is no `{file}`: nothing was applied, another user applied it, or it was undone",
                hint="ALTER SYSTEM RESET NAME takes one setting away",
            )
        states = {state.name: state for state in read_states(connection, list(kept.before))}
        changes, left = [], []
        for name, before in kept.before.items():
            state = states.get(name)
            # The first run was interrupted before it wrote this, or the former value is in place again.
            if state is None or state.kept == before:
                continue
            if state.kept != kept.after.get(name) and not also_changed:
                left.append(name)
                continue
            changes.append(_change(state, before))
        if not dry_run:
            for change in changes:
                alter_system(connection, change.name, kept.before[change.name])
            reload(connection)
            remove_private(file)
    return changes, left


def kept_before(conninfo: str, *, owner: str) -> dict[str, str | None] | None:
    """Return what postgresql.auto.conf said before the first change by an owner; None where there was none.

    Raises:
        MissingAbility: not on this server, or not as this role.
    """
    with connect(conninfo, inspection=False) as connection, explained():
        kept = _read(_checked(connection, owner))
    return None if kept is None else kept.before


def _checked(connection: Connection, owner: str, wanted: dict[str, str] | None = None) -> Path:
    """Return the file of what was before; raise where the server may not be changed."""
    set_for_session(connection, statement_timeout="60s", lock_timeout="2s")
    check_allowed(connection, wanted)
    cluster = read_cluster(connection)
    folder = state_folder()
    if cluster is None or folder is None or not cluster[0].isdecimal():
        raise MissingAbility(
            "there is no place to keep what was before, so nothing is changed",
            cause="this user has no home folder, or the server does not say which cluster it is",
            hint="name a folder: XDG_STATE_HOME=/var/lib pgsweep ...",
        )
    return folder / f"{owner}-{cluster[0]}.json"


def _change(state: SettingState, value: str | None) -> AppliedSetting:
    return AppliedSetting(
        name=state.name,
        before=state.kept,
        after=value,
        statement=statement(state.name, value).as_string(None),
        restart=state.name in _RESTARTS,
    )


def _read(file: Path) -> _Kept | None:
    try:
        return msgspec.json.decode(read_private(file), type=_Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise PgsweepError(
            f"`{file}`, which says what was before, cannot be read",
            cause=str(error),
            hint=f"see: cat {shell_word(str(file))}",
        ) from error


def _write(file: Path, kept: _Kept) -> None:
    try:
        make_private(file.parent, mode=0o700)
        write_whole(file, msgspec.json.format(msgspec.json.encode(kept)), mode=0o600)
    except OSError as error:
        raise PgsweepError(
            f"`{file}` cannot be written: {error.strerror}", cause="nothing was changed on the server"
        ) from error


def restarts(changes: Sequence[AppliedSetting]) -> list[str]:
    """Return the settings that take effect at a restart only."""
    return [change.name for change in changes if change.restart]
