"""Where journals lie, so that runs against different servers, or of different relations, never mix.

In the state folder of the user, `$XDG_STATE_HOME/pgsweep` or `~/.local/state/pgsweep` (XDG Base Directory
Specification), one file for each server, database and selection. A server is known by the time since when its
pool is in use. After a restart it is known by its address and by what tells the servers of one system
identifier apart (pg/session/server_identity.py): a copy or a standby has that of the original, and another
pool.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path
from typing import get_args

import msgspec

from pgsweep.errors import UsageError
from pgsweep.files import check_private, make_private, state_folder
from pgsweep.pg.catalog.server import read_pool_start_us
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.server_identity import differences, read_identity
from pgsweep.plain import shell_word, shown
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.journal import Header, Into, RunKey, read_header


def run_key(connection: Connection, selection: Selection, into: Into) -> RunKey:
    """Return what identifies a run."""
    identity, info = read_identity(connection), connection.info
    return RunKey(
        system_identifier=identity.system_identifier,
        host=info.host,
        port=info.port,
        database=info.dbname,
        relations=sorted(selection.relations),
        schemas=sorted(selection.schemas),
        every_database=selection.every_database,
        into=into,
        server=identity,
    )


def place_for(conninfo: str, selection: Selection, into: Into) -> Path | None:
    """Return the path of a run's journal; None if no folder for it can be made.

    Raises:
        ConnectionFailed: the server cannot be reached.
        Untrusted: others may write to the folder.
    """
    folder = state_folder()
    if folder is None:
        return None
    with connect(conninfo) as connection, explained():
        key = run_key(connection, selection, into)
    try:
        make_private(folder, mode=0o700)
    except OSError:
        return None
    return folder / _name(key) if os.access(folder, os.W_OK | os.X_OK) else None


def find_journal(conninfo: str, selection: Selection | None = None) -> Path:
    """Return the journal of the run on this server and database that was stopped.

    Args:
        conninfo: as libpq understands it.
        selection: what that run was of; nothing where it was the only one.

    Raises:
        UsageError: there is none, there are several, or the only one is damaged.
        ConnectionFailed: the server cannot be reached.
        Untrusted: others may write to the folder.
    """
    with connect(conninfo) as connection, explained():
        here = run_key(connection, selection or Selection(), "pool")
        started_us = read_pool_start_us(connection)
    folder = state_folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            check_private(folder)
    found: list[tuple[Path, RunKey]] = []
    foreign: list[str] = []
    damaged: list[tuple[Path, UsageError]] = []
    for path in sorted(folder.glob("warm-*.journal")) if folder is not None else ():
        try:
            header = read_header(path)
        except UsageError as error:
            if _may_be_of(path, here, any_selection=selection is None):
                damaged.append((path, error))
            continue
        key = header.run
        if key is None or not _is_of(key, here, any_selection=selection is None):
            continue
        if reasons := _reasons(header, key, here, started_us):
            foreign.append(f"`{path}` is the journal of a run on another server: {'; '.join(reasons)}")
        else:
            found.append((path, key))
    if damaged and not found:
        path, why = damaged[0]
        raise UsageError(
            f"the journal `{path}` is there, but is damaged or cannot be read",
            cause=why.cause or why.message,
            hint="remove the file and begin anew without --resume",
        ) from why
    if not found and foreign:
        raise UsageError(
            "no stopped run on this server and database is known",
            cause="; ".join(foreign),
            hint="connect to the server of that run, or begin anew without --resume",
        )
    if not found:
        raise UsageError(
            "no stopped run on this server and database is known",
            cause=None if folder is None else f"a run that is finished removes its journal from {folder}",
            hint="begin anew without --resume, or name the journal: --resume --journal FILE",
        )
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} runs on this server and database were stopped",
            cause="; ".join(f"{path}: {_words(key)}" for path, key in found),
            hint=f"name one: --resume --journal {shell_word(str(found[0][0]))}",
        )
    return found[0][0]


def check_server(header: Header, here: RunKey, started_us: int, path: Path) -> None:
    """Check that a journal was written for this server: its relations are numbers that mean others elsewhere.

    Args:
        header: of the journal.
        here: what would identify the run on this server.
        started_us: since when the pool of this server is in use.
        path: of the journal.

    Raises:
        UsageError: it was written for another.
    """
    run = header.run
    if run is None or not (reasons := _reasons(header, run, here, started_us)):
        return
    raise UsageError(
        f"`{path}` is the journal of a run on the server at {run.host}, port {run.port}, and this one is "
        f"at {here.host}, port {here.port}",
        cause="; ".join(reasons) + ": it is another server, such as a copy or a standby, or it was restarted",
        hint=f"connect to the server of that run: -h {shell_word(run.host)} -p {run.port}; or begin anew "
        "without --resume",
    )


def _reasons(header: Header, run: RunKey, here: RunKey, started_us: int) -> list[str]:
    """Return why a journal is not of this server, in words; nothing where it is."""
    if run.system_identifier != here.system_identifier and None not in (
        run.system_identifier,
        here.system_identifier,
    ):
        return [f"its system identifier is {run.system_identifier}, here it is {here.system_identifier}"]
    if header.started_us == started_us:
        return []
    found = [] if run.server is None or here.server is None else differences(run.server, here.server)
    if (run.host, run.port) != (here.host, here.port):
        found.append(f"it was reached at {shown(run.host)}, port {run.port}")
    return [*found, "its pool is in use since another time"] if found else []


def _is_of(key: RunKey, here: RunKey, *, any_selection: bool) -> bool:
    """Return whether a run was on a server with this system identifier, of this database and selection."""
    places = [(run.system_identifier, run.database) for run in (key, here)]
    chosen = [(run.relations, run.schemas, run.every_database) for run in (key, here)]
    return places[0] == places[1] and (any_selection or chosen[0] == chosen[1])


def _may_be_of(path: Path, here: RunKey, *, any_selection: bool) -> bool:
    """Return whether a file that cannot be read may be the journal of such a run, going by its name."""
    if any_selection:
        return re.fullmatch(rf"{re.escape(_stem(here))}-[0-9a-f]{{16}}\.journal", path.name) is not None
    return path.name in {_name(msgspec.structs.replace(here, into=into)) for into in get_args(Into)}


def _name(key: RunKey) -> str:
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]
    return f"{_stem(key)}-{digest}.journal"


def _stem(key: RunKey) -> str:
    return f"warm-{re.sub(r'[^A-Za-z0-9_-]+', '_', key.database)[:40]}"


def _words(key: RunKey) -> str:
    """Return the options that a run was given."""
    words = [f"--into {key.into}"]
    if key.relations:
        words.append(f"--relations {shell_word(','.join(key.relations))}")
    words += [f"--schema {shell_word(schema)}" for schema in key.schemas]
    if key.every_database:
        words.append("--every-database")
    return " ".join(words)
