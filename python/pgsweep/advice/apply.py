"""What is advised, written by ALTER SYSTEM, and taken back: `pgsweep advise --apply` and `--undo`.

What postgresql.auto.conf said before is kept in a file of the user's state folder, one for each server:
copies and standbys have the same system identifier, and what was applied to one is not undone on another (see
pg/session/server_identity.py). Before each statement the file has what that changes, so an interrupted run
can be undone; where nothing was changed there is no file. A second --apply keeps what was before the first.
The server is never restarted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from pgsweep.commands import on_server, sudo, this_command
from pgsweep.errors import MissingAbility, PgsweepError, UsageError
from pgsweep.files import make_private, read_private, remove_private, state_folder, write_whole
from pgsweep.pg.alter_system import SettingState, alter_system, check_allowed, read_states, reload, statement
from pgsweep.pg.catalog.standbys import order_of_change
from pgsweep.pg.session.connect import Connection, connect, set_for_session
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.retry import awaited
from pgsweep.pg.session.server_identity import ServerIdentity, differences, read_identity
from pgsweep.plain import shell_word
from pgsweep.records.advice import AdviceResult, AppliedSetting
from pgsweep.units import parse_bytes

_RESTARTS: Final = frozenset({"shared_buffers", "huge_pages", "max_connections"})

_ALONE_SECONDS: Final = 20.0
"""How long another run that changes settings is waited for."""

_SHARED_MEMORY: Final = frozenset({"shared_buffers", "max_connections"})
"""The advised settings that take shared memory."""


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What undo needs: by setting, what postgresql.auto.conf said before, and what it was made to say.

    Files of schema 1 do not have the server.
    """

    schema: str = "pgsweep.advise-undo/2"
    before: dict[str, str | None]
    after: dict[str, str]
    server: ServerIdentity | None = None


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
        raise UsageError(
            f"there is nothing to apply: {why}",
            hint=f"see the reasons: pgsweep advise {shell_word(result.evidence)}",
        )
    limit = next((one for one in result.settings if one.where == "cgroup" and one.action == "set"), None)
    if limit is not None:
        raise UsageError(
            f"{limit.name} of the server's cgroup is {limit.today} and must be {limit.value} before the next "
            "start",
            cause=limit.reason,
            hint="raise that limit, or set huge_pages = off; then run it again",
        )
    pages = next((one for one in result.settings if one.name == "vm.nr_hugepages"), None)
    setting = next((one.today for one in result.settings if one.name == "huge_pages"), None)
    if pages is not None and pages.action == "set" and setting == "on":
        raise UsageError(
            f"the kernel has {pages.today} huge pages and needs {pages.value} before the next start",
            cause="huge_pages is on: with fewer the server would not start",
            hint=f"{sudo()}sysctl -w vm.nr_hugepages={pages.value}, then run it again",
        )
    if pages is None and setting == "on" and (grown := _grown(result)):
        count = on_server("pgsweep hugepages", f"--shared-buffers {wanted.get('shared_buffers', 'SIZE')}")
        raise UsageError(
            "whether the kernel has enough huge pages for the next start is not known",
            cause=f"huge_pages is on, and {grown} takes more shared memory: with too few the server "
            "would not start",
            hint=f"run it on the server's host as root, or count them there: {sudo()}{count}; then paste the "
            "lines of --format alter-system",
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
        wanted: values by name; one that postgresql.auto.conf has already is not written.
        dry_run: only say what would be done.
        owner: who changes them; each has a file of its own with what was before.

    Raises:
        MissingAbility: not on this server, or not as this role.
        PgsweepError: what was before cannot be kept, or the server refuses a value.
    """
    with connect(conninfo, inspection=False) as connection, explained(), _alone(dry_run=dry_run):
        place = _checked(connection, owner, wanted)
        states = {state.name: state for state in read_states(connection, list(wanted))}
        unknown = sorted(wanted.keys() - states.keys())
        if unknown:
            raise MissingAbility(f"the server has no setting {', '.join(unknown)}")
        changes = [_change(states[name], value) for name, value in wanted.items()]
        if not dry_run:
            _write_all(connection, place, [change for change in changes if change.before != change.after])
    return changes


def order_on_standbys(conninfo: str, changes: Sequence[AppliedSetting]) -> str | None:
    """Return in which order max_connections is changed on the standbys of a server; None where it is not.

    Args:
        conninfo: of the server.
        changes: what is to be written.
    """
    change = next((one for one in changes if one.name == "max_connections"), None)
    if change is None or change.after is None or not change.after.isdecimal():
        return None
    with connect(conninfo) as connection, explained():
        [state] = read_states(connection, [change.name])
        return order_of_change(connection, change.name, int(state.value), int(change.after))


def mark(conninfo: str, *, owner: str) -> None:
    """Keep that an owner begins to change a server, so that the next run finds it.

    Raises:
        MissingAbility: not on this server, or not as this role.
        PgsweepError: it cannot be kept.
    """
    with connect(conninfo, inspection=False) as connection, explained():
        place = _checked(connection, owner)
    _write(place.file, place.kept or _Kept(before={}, after={}, server=place.here))


def _write_all(connection: Connection, place: _Place, changes: Sequence[AppliedSetting]) -> None:
    """Write each setting and reload; where that fails, the error names those that are written.

    The file has what was written at any time, and the one that is being written: whatever ends this, the file
    has what is to be put back. Where nothing was changed, it is as it was.
    """
    kept = place.kept
    written: list[str] = []
    try:
        for change in changes:
            assert change.after is not None
            former, kept = kept, _with(kept or _Kept(before={}, after={}, server=place.here), change)
            _write(place.file, kept)
            try:
                with explained():
                    alter_system(connection, change.name, change.after)
            except PgsweepError:
                if _is_unchanged(connection, change):
                    _restore(place.file, former)
                else:  # the session has gone, and with it the answer
                    written.append(f"perhaps {change.name}")
                raise
            written.append(change.name)
        if written:
            with explained():
                reload(connection)
    except PgsweepError as error:
        if written and place.owner == "advise":
            error.hint = (
                f"{', '.join(written)} is in postgresql.auto.conf already, not in force; to put it back: "
                f"{on_server('pgsweep advise', '--undo')}"
            )
        raise


@contextmanager
def _alone(*, dry_run: bool) -> Iterator[None]:
    """Let no other run of this user change settings meanwhile: it would take ours for what was before.

    Raises:
        PgsweepError: another one does for longer than some seconds.
    """
    folder = state_folder()
    if dry_run or folder is None:
        yield
        return
    try:
        make_private(folder, mode=0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        if not awaited(lambda: _locked(descriptor) or None, seconds=_ALONE_SECONDS, pause_seconds=0.1):
            raise PgsweepError(
                "another pgsweep of this user changes the settings of a server",
                cause=f"it holds the lock of {shell_word(str(folder))}",
                hint="let it end, and run this again",
            )
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # no locks on this file system: then none can be waited for
    return True


def _with(kept: _Kept, change: AppliedSetting) -> _Kept:
    """Return what is kept with one more change.

    What was before the first change stays, as long as the setting is as it was made then.
    """
    assert change.after is not None
    before = change.before
    if change.name in kept.before and kept.after.get(change.name) == before:
        before = kept.before[change.name]
    return msgspec.structs.replace(
        kept,
        before={**kept.before, change.name: before},
        after={**kept.after, change.name: change.after},
    )


def _is_unchanged(connection: Connection, change: AppliedSetting) -> bool:
    """Return whether the server says that it has not written a change that failed."""
    try:
        with explained():
            return [state.kept for state in read_states(connection, [change.name])] == [change.before]
    except PgsweepError:
        return False


class Undone(NamedTuple):
    """What `undo` did.

    Attributes:
        changes: what was put back.
        left: the settings that others have changed since, and that stay.
        file: what was before, where the file is still there; None where it was removed.
        server: which server the file is of, in words.
        others: files of other servers with this system identifier, and why each was not used.
    """

    changes: list[AppliedSetting]
    left: list[str]
    file: Path | None
    server: str
    others: list[str]


def undo(
    conninfo: str,
    *,
    dry_run: bool = False,
    owner: str = "advise",
    also_changed: bool = False,
    file: Path | None = None,
) -> Undone:
    """Put back what was before.

    The file of what was before is removed if something was put back on the server that it is of.

    Args:
        conninfo: of the server.
        dry_run: only say what would be done.
        owner: who changed them.
        also_changed: put back those that others have changed since, too, and remove the file in any case.
        file: use this one, although it is of another server with the same system identifier.

    Raises:
        MissingAbility: not on this server, or not as this role.
        UsageError: nothing was applied to this server by this user.
    """
    with connect(conninfo, inspection=False) as connection, explained(), _alone(dry_run=dry_run):
        place = _checked(connection, owner)
        source, kept = place.file, place.kept
        if file is not None:
            source, kept = file, _read(file)
            _check_named(file, kept, place.here)
        if kept is None:
            raise _nothing_known(place)
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
        is_own = kept.server is not None and not differences(kept.server, place.here)
        removes = is_own and bool(changes or also_changed)
        if not dry_run:
            if changes:
                _put_back(connection, changes, source)
            if removes:
                remove_private(source)
    server = "a server that it does not name" if kept.server is None else kept.server.words()
    return Undone(changes, left, None if removes else source, server, place.reasons(but=source))


def _put_back(connection: Connection, changes: Sequence[AppliedSetting], file: Path) -> None:
    """Write what was before; where that fails, the error says what is put back already."""
    done: list[str] = []
    try:
        for change in changes:
            with explained():
                alter_system(connection, change.name, change.after)
            done.append(change.name)
        reload(connection)
    except PgsweepError as error:
        error.hint = error.hint or (
            (f"{', '.join(done)} is put back already, not in force; " if done else "")
            + f"`{file}` is kept: run the same again"
        )
        raise


def kept_before(conninfo: str, *, owner: str) -> dict[str, str | None] | None:
    """Return what postgresql.auto.conf said before the first change by an owner; None where there was none.

    Raises:
        MissingAbility: not on this server, or not as this role.
    """
    with connect(conninfo, inspection=False) as connection, explained():
        kept = _checked(connection, owner).kept
    return None if kept is None else kept.before


@dataclass(frozen=True, slots=True)
class _Place:
    """Where what was before is kept.

    Attributes:
        owner: who changes settings.
        here: the server.
        file: of this server; there may be none yet.
        kept: what it says; None where there is none.
        others: files of servers with the same system identifier; what is None cannot be read.
    """

    owner: str
    here: ServerIdentity
    file: Path
    kept: _Kept | None
    others: list[tuple[Path, _Kept | None]]

    def reasons(self, but: Path) -> list[str]:
        """Return for each other file but one why it is not used."""
        return [f"`{file}` is not used: {self._why(kept)}" for file, kept in self.others if file != but]

    def _why(self, kept: _Kept | None) -> str:
        if kept is None:
            return "it cannot be read"
        if kept.server is None:
            return "an earlier version of pgsweep wrote it, and did not keep of which server"
        return "it is of another server of this cluster: " + "; ".join(differences(kept.server, self.here))


def _checked(connection: Connection, owner: str, wanted: dict[str, str] | None = None) -> _Place:
    """Return where what was before is kept; raise where the server may not be changed."""
    set_for_session(connection, statement_timeout="60s", lock_timeout="2s")
    check_allowed(connection, wanted)
    # The lab's restart command may bring the server up under another name of its host, as in a new container.
    here = read_identity(connection, with_host=owner == "advise")
    folder, cluster = state_folder(), here.system_identifier
    if cluster is None or folder is None or not cluster.isdecimal():
        raise MissingAbility(
            "there is no place to keep what was before, so nothing is changed",
            cause="this user has no home folder, or the server does not say which cluster it is",
            hint=f"name a folder: XDG_STATE_HOME=/var/lib {this_command()}",
        )
    digest = hashlib.sha256(msgspec.json.encode(here)).hexdigest()[:16]
    own, own_kept = folder / f"{owner}-{cluster}-{digest}.json", None
    others: list[tuple[Path, _Kept | None]] = []
    for file in sorted(folder.glob(f"{owner}-{cluster}*.json")):
        try:
            kept = _read(file)
        except PgsweepError:
            if file == own:
                raise
            others.append((file, None))
            continue
        if kept is None:
            continue
        if kept.server is not None and not differences(kept.server, here):
            own, own_kept = file, kept
        else:
            others.append((file, kept))
    return _Place(owner, here, own, own_kept, others)


def _check_named(file: Path, kept: _Kept | None, here: ServerIdentity) -> None:
    """Check a file that was named: it must be there, and of the same cluster.

    Raises:
        UsageError: it is not.
    """
    if kept is None:
        raise UsageError(f"there is no file `{file}`", hint="leave out --undo-from to see which there are")
    if kept.server is not None and kept.server.system_identifier != here.system_identifier:
        raise UsageError(
            f"`{file}` is of another cluster: nothing of it was applied here",
            cause="; ".join(differences(kept.server, here)),
            hint="leave out --undo-from to see which files there are of this one",
        )


def _nothing_known(place: _Place) -> UsageError:
    what = "nothing is known to undo on this server"
    others = place.reasons(but=place.file)
    usable = [file for file, kept in place.others if kept is not None]
    if others:
        return UsageError(
            what,
            cause="; ".join(others),
            hint="connect to that server; or, if it is this one, moved or restored: "
            f"{this_command()} --undo-from {shell_word(str(usable[0]))}"
            if usable
            else None,
        )
    return UsageError(
        what,
        cause=f"there is no `{place.file}`: nothing was applied, another user applied it, or it was undone",
        hint="ALTER SYSTEM RESET NAME takes one setting away",
    )


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
        raise _unwritable(file, error) from error


def _unwritable(path: Path, error: OSError) -> PgsweepError:
    return PgsweepError(
        f"`{path}` cannot be written: {error.strerror}",
        cause="what is changed is first written there, so that it can be undone",
        hint=f"name another folder: XDG_STATE_HOME=/var/lib {this_command()}",
    )


def _restore(file: Path, former: _Kept | None) -> None:
    """Make the file what it was before a change that was not made."""
    if former is not None:
        _write(file, former)
        return
    try:
        remove_private(file)
    except OSError as error:
        raise PgsweepError(f"`{file}` cannot be removed: {error.strerror}") from error


def restarts(changes: Sequence[AppliedSetting]) -> list[str]:
    """Return the settings that take effect at a restart only."""
    return [change.name for change in changes if change.restart]
