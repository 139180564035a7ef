"""The description of a load: in the journal in the database, and in a local file."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from pgsweep.errors import PgsweepError
from pgsweep.files import make_private, remove_private, state_folder, write_whole
from pgsweep.load.input.source import Input
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load.catalog import Column, TableFacts
from pgsweep.pg.load.copy import CopyTarget
from pgsweep.pg.load.journal import JournalObject
from pgsweep.records.load import LoadPlan


class LoadDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a later run needs to continue.

    Attributes:
        columns: of the table.
        first_xid: the transaction number from which the load counts.
        truncatable: TRUNCATE of the table would change nothing but its files.
        may_truncate: `truncatable`, and the table was empty under a lock.
        path: the search_path of the table's code.
        measure: it is not known yet whether several sessions are faster than one.
        journal: the local file; None where there is none.
    """

    table: TableFacts
    columns: list[Column]
    plan: LoadPlan
    target: CopyTarget
    inputs: list[Input]
    options: LoadOptions
    truncatable: bool
    path: str
    measure: bool
    first_xid: int = 0
    may_truncate: bool = False
    rejects_file: str | None = None
    journal: str | None = None

    @property
    def headers(self) -> list[str]:
        """The files that begin with a header."""
        return [file.path for file in self.plan.files if file.header]

    def text(self) -> str:
        """Return the document for the journal."""
        return msgspec.json.encode(self).decode()


def parse_document(text: str) -> LoadDocument:
    """Return the document that a journal holds.

    Raises:
        PgsweepError: it was written by another version, or changed.
    """
    try:
        return msgspec.json.decode(text, type=LoadDocument)
    except msgspec.DecodeError as error:
        raise PgsweepError(
            f"the journal of the load cannot be understood: {error}",
            cause="it was written by another version of pgsweep",
            hint="use that version, or paste the statements of its local file: see ~/.local/state/pgsweep",
        ) from error


class LocalJournal(msgspec.Struct, frozen=True, kw_only=True):
    """The local file: the catalog as it was, and the statements that make it so again."""

    schema: str = "pgsweep.load-journal/1"
    load_id: str
    server: str
    database: str
    table: str
    files: list[str]
    restore: list[str]
    objects: list[JournalObject]
    before: list[tuple[str, str]]


def journal_place(given: Path | None, load_id: str) -> Path | str:
    """Return where the local file lies, or why there is no folder for it."""
    if given is not None:
        return given.absolute()
    folder = state_folder()
    if folder is None:
        return "no home folder, and no $XDG_STATE_HOME"
    try:
        make_private(folder, mode=0o700)
    except OSError as error:
        return f"`{folder}`: {error.strerror}"
    except PgsweepError as error:
        return f"{error.message}: {error.cause}"
    return folder / f"load-{load_id}.json"


def write_local(path: Path, journal: LocalJournal) -> None:
    """Write the local file, whole or not at all, flushed to the disk.

    Raises:
        PgsweepError: the disk is full, or the folder may not be written.
    """
    try:
        write_whole(path, msgspec.json.format(msgspec.json.encode(journal)), mode=0o600)
    except OSError as error:
        raise PgsweepError(
            f"the journal `{path}` cannot be written: {error.strerror}",
            cause="nothing was changed in the database",
            hint="name another place: --journal FILE",
        ) from error


def remove_local(path: str | None) -> None:
    """Remove the local file at the end of a load."""
    if path is not None:
        with contextlib.suppress(OSError, PgsweepError):
            if Path(path).parent == state_folder():
                remove_private(Path(path))
            else:
                Path(path).unlink(missing_ok=True)
