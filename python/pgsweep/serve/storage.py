"""Where the history is kept: one contract, and SQLite as the first of its two implementations.

The other is PostgreSQL (pg/history_store.py). Both get the same statements, in SQL that both take: tables are
named as SQLite names them (`main.samples`), parameters are `?`, and words that PostgreSQL reserves are
quoted. What differs by nature is in the store: types of columns, the size on disk, and how room that was
freed is used again.

SQLite writes ahead (WAL): a process that is killed leaves what was committed.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol

from pgsweep.errors import PgsweepError
from pgsweep.plain import shell_word, shown

SCHEMA_NUMBER: Final = 1
_MOST_VALUE_BYTES: Final = 16 << 20
_COMPUTED: Final = re.compile(r"\bVIRTUAL\b|\bCHECK\b|\bAS\s*\(|\bDEFAULT\b", re.IGNORECASE)
Row = tuple[Any, ...]


class HistoryError(PgsweepError):
    """The history cannot be opened, read or written."""


class Session(Protocol):
    """Statements on a history."""

    def execute(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement; return its rows, none where it has none."""

    def execute_many(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each of some rows of values."""

    def batches(self, text: str, values: Sequence[Any], count: int) -> Iterator[list[Row]]:
        """Yield the rows of a query, `count` at a time."""

    def columns(self, table: str) -> set[str]:
        """Return the columns of a table, none where there is none; an older history lacks what was added."""


class Store(Protocol):
    """A place for the history. What fails raises a PgsweepError, and the next try begins anew.

    Attributes:
        name: where it is, in words, without a password.
    """

    name: str

    def open(self) -> None:
        """Connect, and make the tables that are not there."""

    def writing(self) -> AbstractContextManager[Session]:
        """Begin a transaction, committed at the end of the block; for one thread."""

    def reading(self) -> AbstractContextManager[Session]:
        """Give a session that reads only; for any thread."""

    def is_keeper(self) -> bool:
        """Return whether this process rolls up and drops; of several that write, one does."""

    def size_bytes(self, most_bytes: int) -> int:
        """Return the size; an estimate may stand for it as long as it is not more than `most_bytes`."""

    def reclaim(self) -> None:
        """Make room that was freed usable."""

    def close(self) -> None:
        """End the sessions."""


class Columns(Protocol):
    """Names of the types that columns have."""

    number: str
    whole: str
    text: str
    data: str
    key: str
    options: str


def make_tables(kinds: Columns, samples: Sequence[str], consumers: Sequence[str]) -> list[str]:
    """Return the statements that make the tables.

    Args:
        kinds: the store's types.
        samples: columns with values of the table of samples.
        consumers: likewise of the table of consumers.
    """
    number, whole, text, data = kinds.number, kinds.whole, kinds.text, kinds.data
    sampled = ", ".join(f"{name} {number}" for name in samples)
    consumed = ", ".join(f"{name} {number}" for name in consumers)
    bodies = {
        "servers": f"id {kinds.key}, name {text} NOT NULL UNIQUE)",
        "samples": f"level {whole} NOT NULL, server {whole} NOT NULL, at {whole} NOT NULL, {sampled}, "
        f"PRIMARY KEY (level, server, at)){kinds.options}",
        "gaps": f"server {whole} NOT NULL, began {number} NOT NULL, ended {number} NOT NULL, "
        f"why {text} NOT NULL, PRIMARY KEY (server, began)){kinds.options}",
        "curves": f'server {whole} NOT NULL, at {whole} NOT NULL, "window" {whole} NOT NULL, '
        f'curve {data} NOT NULL, PRIMARY KEY (server, "window", at)){kinds.options}',
        "verifications": f"server {whole} NOT NULL, at {whole} NOT NULL, result {data} NOT NULL, "
        f"PRIMARY KEY (server, at)){kinds.options}",
        "consumers": f"level {whole} NOT NULL, server {whole} NOT NULL, at {whole} NOT NULL, "
        f'kind {text} NOT NULL, "user" {text} NOT NULL, database {text} NOT NULL, id {text} NOT NULL, '
        f'{consumed}, PRIMARY KEY (level, server, at, kind, "user", database, id)){kinds.options}',
    }
    return [f"CREATE TABLE IF NOT EXISTS main.{name} ({body}" for name, body in bodies.items()]


def add_columns(session: Session, kinds: Columns, samples: Sequence[str]) -> None:
    """Add the columns that the samples of an older history lack."""
    known = session.columns("samples")
    for name in samples:
        if name not in known:
            session.execute(f"ALTER TABLE main.samples ADD COLUMN {name} {kinds.number}")


class SqliteColumns:
    """SQLite's types; the histories of earlier versions have the same."""

    number = "REAL"
    whole = "INTEGER"
    text = "TEXT"
    data = "BLOB"
    key = "INTEGER PRIMARY KEY"
    options = " WITHOUT ROWID"


class SqliteSession:
    """Statements on SQLite.

    Args:
        connection: on which.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement; return its rows."""
        return self._connection.execute(text, values).fetchall()

    def execute_many(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each of some rows of values."""
        self._connection.executemany(text, rows)

    def batches(self, text: str, values: Sequence[Any], count: int) -> Iterator[list[Row]]:
        """Yield the rows of a query, `count` at a time."""
        found = self._connection.execute(text, values)
        while rows := found.fetchmany(count):
            yield rows

    def columns(self, table: str) -> set[str]:
        """Return the columns of a table; none where there is none."""
        return {str(name) for (name,) in self.execute("SELECT name FROM pragma_table_info(?)", [table])}


class SqliteStore:
    """A history in one file; every reading has a session of its own.

    Args:
        path: of the file; is made.
        tables: the statements that make the tables.
        samples: columns with values of the table of samples.
    """

    def __init__(self, path: Path, tables: Sequence[str], samples: Sequence[str] = ()) -> None:
        self.path = path
        self.name = str(path)
        self._tables = tables
        self._samples = samples
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, and make the tables that are not there.

        Raises:
            HistoryError: it cannot be opened, or is of a newer pgsweep.
        """
        try:
            connection = self._connected()
            with connection:
                for statement in self._tables:
                    connection.execute(statement)
                add_columns(SqliteSession(connection), SqliteColumns(), self._samples)
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version > SCHEMA_NUMBER:
                    raise newer(f"`{self.path}`")
                connection.execute(f"PRAGMA user_version = {SCHEMA_NUMBER}")
        except (sqlite3.Error, OSError) as error:
            raise HistoryError(
                f"the history `{self.path}` cannot be opened",
                cause=str(error),
                hint=f"see its folder: ls -ld {shell_word(str(self.path.parent))}; or --history DIR",
            ) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            connection = sqlite3.connect(self.path, timeout=10.0, check_same_thread=False)
            _distrust(connection, self.path)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA journal_size_limit = 4194304")
            self._connection = connection
        return self._connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[SqliteSession]:
        """Begin a transaction, committed at the end of the block.

        Raises:
            HistoryError: it failed; nothing of it is written.
        """
        with _explained(), self._connected() as connection:
            yield SqliteSession(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqliteSession]:
        """Give a session that reads only.

        Raises:
            HistoryError: the file cannot be read.
        """
        try:
            uri = f"{self.path.absolute().as_uri()}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as connection:
                _distrust(connection, self.path)
                yield SqliteSession(connection)
        except sqlite3.Error as error:
            raise HistoryError(
                f"the history `{self.path}` cannot be read",
                cause=str(error),
                hint="is it the --history of `serve`?",
            ) from error

    def is_keeper(self) -> bool:
        """Return True: there is one process for a file (holding.py)."""
        return True

    def size_bytes(self, most_bytes: int) -> int:  # noqa: ARG002 (it is known exactly)
        """Return what the tables take of the file."""
        with _explained():
            connection = self._connected()
            pages, free, page = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * page)

    def reclaim(self) -> None:
        """Give free pages back to the file system."""
        with _explained():
            self._connected().execute("PRAGMA incremental_vacuum").fetchall()

    def close(self) -> None:
        """End the session that writes."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _distrust(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file in which anything is computed when a table is read or written: it may never end.

    Raises:
        HistoryError: it has a view, a trigger or the like in it.
    """
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    for kind, name, text in connection.execute("SELECT type, name, sql FROM main.sqlite_schema LIMIT 1000"):
        # An index of ours is the key of its table, and has no text.
        if (kind != "table" and text) or _COMPUTED.search(text or ""):
            raise HistoryError(
                f"`{path}` is not a history of `serve`",
                cause=f"its {kind} {shown(name)!a} is none that `serve` makes",
                hint="name another folder: --history DIR",
            )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise HistoryError(f"the history is not written: {error}") from error


def newer(name: str) -> HistoryError:
    """Return the error of a history that a newer pgsweep wrote."""
    return HistoryError(f"{name} was written by a newer pgsweep", hint="pip install --upgrade pgsweep")
