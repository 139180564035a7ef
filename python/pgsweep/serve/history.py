"""The history of all servers in one SQLite database: what is kept, for how long, and what is missing from it.

Values are kept at three levels: 10 s for a day, 1 min for a month, 15 min for two years. The finer ones
make the coarser ones, by one statement, so a history that was cut anywhere goes on where it stopped. Sums
(hits, reads) are added up, all others averaged. The file has a limit: beyond it, the oldest of the finest
level go first.

SQLite writes ahead (WAL): a process that is killed leaves what was committed. A full disk ends neither the
collecting nor the process: what could not be written in time is lost, and a gap with the reason stands for
it as soon as there is room again.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from pgsweep.errors import PgsweepError
from pgsweep.plain import shell_word
from pgsweep.records.serve import ServeConsumers, ServeCurve, ServeGap, ServeSeries
from pgsweep.serve import history_consumers
from pgsweep.serve.consumers import Key, Values

SUMS: Final = (
    "covered_seconds",
    "hits",
    "reads",
    "transactions",
    "allocations",
    "evictions",
    "hand_buffers",
    "disk_read_bytes",
)
"""Columns that are added up."""

GAUGES: Final = (
    "shared_buffers_bytes",
    "used_bytes",
    "dirty_bytes",
    "page_cache_bytes",
    "both_bytes",
    "usage_count_0",
    "usage_count_1",
    "usage_count_2",
    "usage_count_3",
    "usage_count_4",
    "usage_count_5",
    "sessions",
    "active_sessions",
)
"""Columns that are averaged."""

COLUMNS: Final = (*SUMS, *GAUGES)

LEVELS: Final = {10: 86_400, 60: 30 * 86_400, 900: 730 * 86_400}
"""Seconds of a level's step, and for how many seconds it is kept."""

_KEPT_CURVES_SECONDS: Final = 730 * 86_400
_WAITING: Final = 600
"""Samples that wait for a disk that is full; then the oldest are lost."""

_SWEEP_SECONDS: Final = 60.0
_JUMP_SECONDS: Final = 600.0
_AFTER_JUMP_SECONDS: Final = 86_400.0
_SCHEMA_NUMBER: Final = 1
_MOST_POINTS: Final = 2000

_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS servers (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS samples (
    level INTEGER NOT NULL, server INTEGER NOT NULL, at INTEGER NOT NULL,
    {", ".join(f"{name} REAL" for name in COLUMNS)},
    PRIMARY KEY (level, server, at)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gaps (
    server INTEGER NOT NULL, began REAL NOT NULL, ended REAL NOT NULL, why TEXT NOT NULL,
    PRIMARY KEY (server, began)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS curves (
    server INTEGER NOT NULL, at INTEGER NOT NULL, window INTEGER NOT NULL, curve BLOB NOT NULL,
    PRIMARY KEY (server, window, at)
) WITHOUT ROWID;
{history_consumers.SCHEMA}"""


class HistoryError(PgsweepError):
    """The history cannot be opened."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval of one server; columns that are not known are left out."""

    server: str
    at: float
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without samples, and why."""

    server: str
    begin: float
    end: float
    why: str


@dataclass(frozen=True, slots=True)
class KeptCurve:
    """The curve of one hour."""

    server: str
    curve: ServeCurve


@dataclass(frozen=True, slots=True)
class Interval:
    """What the consumers of a server used in the `seconds` before `at`."""

    server: str
    at: float
    seconds: float
    rows: dict[Key, Values]


Item = Sample | Gap | KeptCurve | Interval


@dataclass(slots=True)
class _State:
    trouble: str | None = None
    lost: dict[str, tuple[float, float]] = field(default_factory=dict)


class Clock:
    """Notices when the time of day jumps: nothing is then dropped for its age for a day.

    A clock that is years ahead until it is set right would otherwise cost the whole history.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._jumped: float | None = None

    def is_steady(self) -> bool:
        """Return whether the time has not jumped within the last day."""
        offset, now = time.time() - time.monotonic(), time.monotonic()
        if abs(offset - self._offset) > _JUMP_SECONDS:
            self._jumped = now
        self._offset = offset
        return self._jumped is None or now - self._jumped > _AFTER_JUMP_SECONDS


class History:
    """Writes the history in a thread of its own; every reading has a session of its own.

    Args:
        path: of the database; is made.
        most_bytes: of its file.

    Raises:
        HistoryError: it cannot be opened, or is of a newer pgsweep.
    """

    def __init__(self, path: Path, *, most_bytes: int) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._waiting: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._held: list[Item] = []
        self._state = _State()
        self._swept = 0.0
        self._clock = Clock()
        try:
            self._connection = _opened(path)
            with self._connection:
                self._connection.executescript(_SCHEMA)
                version = self._connection.execute("PRAGMA user_version").fetchone()[0]
                if version > _SCHEMA_NUMBER:
                    raise HistoryError(
                        f"`{path}` was written by a newer pgsweep", hint="pip install --upgrade pgsweep"
                    )
                self._connection.execute(f"PRAGMA user_version = {_SCHEMA_NUMBER}")
        except (sqlite3.Error, OSError) as error:
            raise HistoryError(
                f"the history `{path}` cannot be opened",
                cause=str(error),
                hint=f"see its folder: ls -ld {shell_word(str(path.parent))}; or --history DIR",
            ) from error
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    @property
    def trouble(self) -> str | None:
        """Return why nothing is written now; None where all is well."""
        return self._state.trouble

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add(self, item: Item) -> None:
        """Keep something, soon."""
        self._waiting.put(item)

    def stop(self) -> None:
        """Write what waits, and close."""
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _run(self) -> None:
        try:
            while self._round():
                pass
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()

    def _round(self) -> bool:
        """Write what has come; return whether there may be more."""
        going_on = True
        with contextlib.suppress(queue.Empty):
            item = self._waiting.get(timeout=5.0 if self._held else 60.0)
            while item is not None:
                self._held.append(item)
                item = self._waiting.get_nowait()
            going_on = False
        try:
            with self._connection:
                for item in self._held:
                    self._write(item)
                for name, (begin, end) in self._state.lost.items():
                    self._write(Gap(name, begin, end, self._state.trouble or "the history was not written"))
            self._held.clear()
            self._state.lost.clear()
            self._state.trouble = None
            if time.monotonic() - self._swept >= _SWEEP_SECONDS or not going_on:
                self._swept = time.monotonic()
                drop = self._clock.is_steady()
                roll_up(self._connection, time.time(), drop=drop)
                history_consumers.roll_up(self._connection, time.time(), drop=drop)
                _keep_to(self._connection, self._most_bytes, time.time())
        except sqlite3.Error as error:
            self._state.trouble = f"the history is not written: {error}"
            self._lose_what_is_too_much()
        return going_on

    def _write(self, item: Item) -> None:
        server = self._id_of(item.server)
        if isinstance(item, Sample):
            names = [name for name in COLUMNS if name in item.values]
            self._connection.execute(
                f"INSERT OR REPLACE INTO samples (level, server, at, {', '.join(names)}) "  # noqa: S608
                f"VALUES (10, ?, ?, {', '.join('?' * len(names))})",
                [server, int(item.at), *(item.values[name] for name in names)],
            )
        elif isinstance(item, Gap):
            self._connection.execute(
                "INSERT OR REPLACE INTO gaps (server, began, ended, why) VALUES (?, ?, ?, ?)",
                [server, item.begin, item.end, item.why],
            )
        elif isinstance(item, Interval):
            history_consumers.write(self._connection, server, item.at, item.seconds, item.rows)
        else:
            self._connection.execute(
                "INSERT OR REPLACE INTO curves (server, at, window, curve) VALUES (?, ?, ?, ?)",
                [server, int(item.curve.at), item.curve.window_seconds, msgspec.json.encode(item.curve)],
            )

    def _id_of(self, name: str) -> int:
        found = self._connection.execute("SELECT id FROM servers WHERE name = ?", [name]).fetchone()
        if found is None:
            self._connection.execute("INSERT INTO servers (name) VALUES (?)", [name])
            return self._id_of(name)
        return int(found[0])

    def _lose_what_is_too_much(self) -> None:
        """Drop the oldest of what waits beyond the limit, and remember for which time that was."""
        while len(self._held) > _WAITING:
            item = self._held.pop(0)
            if isinstance(item, Sample):
                begin, end = self._state.lost.get(item.server, (item.at, item.at))
                self._state.lost[item.server] = (min(begin, item.at), max(end, item.at))


def roll_up(connection: sqlite3.Connection, now: float, *, drop: bool = True) -> None:
    """Make the coarser levels of the finer ones, as far as their steps are over, and drop what is too old.

    What a clock that was ahead has left in the future is no reason to make nothing until then.
    """
    columns = ", ".join(COLUMNS)
    made = ", ".join([f"sum({name})" for name in SUMS] + [f"avg({name})" for name in GAUGES])
    levels = list(LEVELS)
    with connection:
        for finer, step in itertools.pairwise(levels):
            # The last ones made are made again: they may have been incomplete.
            connection.execute(
                f"INSERT OR REPLACE INTO samples (level, server, at, {columns}) "  # noqa: S608
                f"SELECT {step}, server, ((at - 1) / {step} + 1) * {step} AS step, {made} FROM samples "
                "JOIN (SELECT id, coalesce((SELECT max(at) FROM samples AS s WHERE s.level = ? "
                "AND s.server = id AND s.at <= ?), 0) AS done FROM servers) ON id = server "
                "WHERE level = ? AND at > done - ? GROUP BY server, step",
                [step, now + step, finer, 2 * step],
            )
        if not drop:
            return
        for step, kept in LEVELS.items():
            connection.execute("DELETE FROM samples WHERE level = ? AND at < ?", [step, now - kept])
        connection.execute("DELETE FROM curves WHERE at < ?", [now - _KEPT_CURVES_SECONDS])
        connection.execute("DELETE FROM gaps WHERE ended < ?", [now - LEVELS[900]])


def _keep_to(connection: sqlite3.Connection, most_bytes: int, now: float) -> None:
    """Remove the oldest of the finest level, then of the next, until the file has at most its bytes."""
    for step in history_consumers.LEVELS:
        while _size(connection) > most_bytes and history_consumers.drop_oldest(connection, step, now):
            connection.execute("PRAGMA incremental_vacuum")
    for step in LEVELS:
        while _size(connection) > most_bytes:
            oldest = connection.execute("SELECT min(at) FROM samples WHERE level = ?", [step]).fetchone()[0]
            if oldest is None or oldest > now - 4 * step:
                break
            with connection:
                connection.execute(
                    "DELETE FROM samples WHERE level = ? AND at <= ?",
                    [step, oldest + max(step, (now - oldest) / 10)],
                )
            connection.execute("PRAGMA incremental_vacuum")


def _size(connection: sqlite3.Connection) -> int:
    pages, free, page = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * page)


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    connection = sqlite3.connect(path, timeout=10.0, check_same_thread=False)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 4194304")
    return connection


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a history for reading only.

    Raises:
        HistoryError: it cannot be read.
    """
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
        with contextlib.closing(connection):
            yield connection
    except sqlite3.Error as error:
        raise HistoryError(
            f"the history `{path}` cannot be read", cause=str(error), hint="is it the --history of `serve`?"
        ) from error


def level_for(begin: float, end: float, now: float) -> int:
    """Return the finest level that still has the beginning, and no more points than a page can show."""
    for step, kept in LEVELS.items():
        if (end - begin) / step <= _MOST_POINTS and begin >= now - kept - step:
            return step
    return list(LEVELS)[-1]


def read_series(path: Path, server: str, begin: float, end: float) -> ServeSeries:
    """Return a part of a server's history, at the level that suits its length.

    Raises:
        HistoryError: it cannot be read.
    """
    step = level_for(begin, end, time.time())
    with reading(path) as connection:
        rows = connection.execute(
            f"SELECT at, {', '.join(COLUMNS)} FROM samples JOIN servers ON id = server "  # noqa: S608
            "WHERE level = ? AND name = ? AND at >= ? AND at <= ? ORDER BY at",
            [step, server, begin, end],
        ).fetchall()
        gaps = connection.execute(
            "SELECT began, ended, why FROM gaps JOIN servers ON id = server "
            "WHERE name = ? AND ended >= ? AND began <= ? ORDER BY began",
            [server, begin, end],
        ).fetchall()
    return ServeSeries(
        server=server,
        begin=begin,
        end=end,
        step_seconds=step,
        at=[float(row[0]) for row in rows],
        columns={name: [row[number] for row in rows] for number, name in enumerate(COLUMNS, 1)},
        gaps=[ServeGap(begin=row[0], end=row[1], why=row[2]) for row in gaps],
    )


def read_curves(path: Path, server: str, begin: float, end: float) -> list[ServeCurve]:
    """Return the curves of a server that were kept, one an hour, oldest first.

    Raises:
        HistoryError: the history cannot be read.
    """
    with reading(path) as connection:
        rows = connection.execute(
            "SELECT curve FROM curves JOIN servers ON id = server "
            "WHERE name = ? AND window = 3600 AND at >= ? AND at <= ? ORDER BY at",
            [server, begin, end],
        ).fetchall()
    return [msgspec.json.decode(row[0], type=ServeCurve) for row in rows]


def read_consumers(path: Path, server: str, begin: float, end: float) -> ServeConsumers:
    """Return who used a server over a range.

    Raises:
        HistoryError: the history cannot be read.
    """
    with reading(path) as connection:
        covered, total, found = history_consumers.read(connection, server, begin, end, time.time())
    return ServeConsumers(
        server=server, begin=begin, end=end, covered_seconds=covered, totals=total, consumers=found
    )


def read_rows(path: Path, step: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a level in batches: server, step, time, and all columns.

    Raises:
        HistoryError: the history cannot be read.
    """
    with reading(path) as connection:
        found = connection.execute(
            f"SELECT name, level, at, {', '.join(COLUMNS)} FROM samples JOIN servers ON id = server "  # noqa: S608
            "WHERE level = ? ORDER BY name, at",
            [step],
        )
        while rows := found.fetchmany(50_000):
            yield rows
