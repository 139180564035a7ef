"""Local journals of loads that are not in the database any more: removed, or explained.

A load ends in the database first, then its local file is removed. A run that is killed between the two leaves
the file. It also stays where somebody drops the journal in the database; then it is the only record of what
the table had. So a file is removed only if its table is as it was, or was dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.files import read_private, state_folder
from pgsweep.load.document import LocalJournal, remove_local
from pgsweep.pg.load.catalog import differences, read_facts
from pgsweep.pg.load.journal import begun_by_others, holder_of, read_unfinished
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.conninfo import place_of
from pgsweep.pg.session.userpath import resolve_relation
from pgsweep.plain import shell_word


def remove_leftovers(conninfo: str, connection: Connection, note: Callable[[str], None]) -> None:
    """Remove local journals of loads of this database that have ended; say what is left of the others.

    A journal of another server is left alone.
    """
    mine = (place_of(conninfo), connection.info.dbname)
    found = [
        (path, journal) for path, journal in local_journals() if (journal.server, journal.database) == mine
    ]
    if not found:
        return
    known = {load_id for load_id, *_ in read_unfinished(connection)}
    for path, journal in found:
        if journal.load_id not in known:
            _settle(connection, path, journal, note)


def _settle(connection: Connection, path: Path, journal: LocalJournal, note: Callable[[str], None]) -> None:
    try:
        oid = resolve_relation(connection, journal.table)
    except UsageError:
        remove_local(str(path))
        note(f"removed {path}: the journal of a load of {journal.table}, a table that was dropped")
        return
    # A run that has claimed the table writes the file before the journal in the database.
    # The journal of another role's load is not read.
    if holder_of(connection, oid) or begun_by_others(connection, oid):
        return
    changes = differences(journal.before, read_facts(connection, oid))
    if not changes:
        remove_local(str(path))
        note(f"removed {path}: the journal of a load of {journal.table} that has ended")
        return
    note(
        f"{path} is the journal of a load of {journal.table} that is no longer in the database, and "
        f"the table has changed ({changes[0]}); if something is missing, run the statements under "
        f"`restore` in it; then: rm {shell_word(str(path))}"
    )


def local_journals() -> list[tuple[Path, LocalJournal]]:
    """Return the local journals in the state folder that can be read."""
    folder = state_folder()
    if folder is None or not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.glob("load-*.json")):
        with contextlib.suppress(OSError, msgspec.DecodeError, PgsweepError):
            found.append((path, msgspec.json.decode(read_private(path), type=LocalJournal)))
    return found
