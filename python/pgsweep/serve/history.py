"""The history of all servers in one database: what is kept, for how long, and what is missing from it.

The database is a file of SQLite, or one of PostgreSQL (storage.py); what is here is the same for both.

Values are kept at three levels: 10 s for a day, 1 min for a month, 15 min for two years. The finer ones
make the coarser ones, by one statement, so a history that was cut anywhere goes on where it stopped. Sums
(hits, reads) are added up, all others averaged. The size has a limit: beyond it, the oldest of the finest
level go first.

A process that is killed leaves what was committed. Neither a full disk nor a database that is away ends the
collecting: what could not be written in time is lost, and a gap with the reason stands for it as soon as it
can be written again.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.errors import ConnectionFailed, PgsweepError
from pgsweep.pg.history_store import PostgresColumns, PostgresStore
from pgsweep.records.serve import ServeCurve, ServeVerification
from pgsweep.serve import history_consumers
from pgsweep.serve.consumers import Key, Values
from pgsweep.serve.storage import (
    SCHEMA_NUMBER,
    Session,
    SqliteColumns,
    SqliteStore,
    Store,
    add_columns,
    make_tables,
)

SUMS: Final = (
    "covered_seconds",
    "hits",
    "reads",
    "transactions",
    "allocations",
    "evictions",
    "hand_buffers",
    "disk_read_bytes",
    "split_seconds",
    "page_cache_reads",
    "disk_reads",
    "unsplit_reads",
    "checkpoints",
)
"""Columns that are added up. What served the reads is known of other seconds than those of the sample
(served_by.py), which are `split_seconds`."""

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

_PUT_SAMPLE: Final = (
    f"INSERT INTO main.samples (level, server, at, {', '.join(COLUMNS)}) "  # noqa: S608
    f"VALUES (10, ?, ?, {', '.join('?' * len(COLUMNS))}) ON CONFLICT (level, server, at) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS)
)
_PUT_GAP: Final = (
    "INSERT INTO main.gaps (server, began, ended, why) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (server, began) DO UPDATE SET ended = excluded.ended, why = excluded.why"
)
_PUT_CURVE: Final = (
    'INSERT INTO main.curves (server, at, "window", curve) VALUES (?, ?, ?, ?) '
    'ON CONFLICT (server, "window", at) DO UPDATE SET curve = excluded.curve'
)
_PUT_VERIFICATION: Final = (
    "INSERT INTO main.verifications (server, at, result) VALUES (?, ?, ?) "
    "ON CONFLICT (server, at) DO UPDATE SET result = excluded.result"
)


def sqlite_store(path: Path) -> SqliteStore:
    """Return the history in a file."""
    return SqliteStore(path, make_tables(SqliteColumns(), COLUMNS, history_consumers.ALL), COLUMNS)


def store_of(folder: Path, conninfo: str | None, servers: Sequence[str] = ()) -> Store:
    """Return the history in a folder, or in the database that is named, to write that of these servers."""
    if conninfo is None:
        return sqlite_store(folder / "history.sqlite")
    return postgres_store(conninfo, servers)


def postgres_store(conninfo: str, servers: Sequence[str] = ()) -> PostgresStore:
    """Return the history in a database of PostgreSQL, to write that of these servers."""
    tables = make_tables(PostgresColumns(), COLUMNS, history_consumers.ALL)
    return PostgresStore(
        conninfo,
        tables,
        SCHEMA_NUMBER,
        lambda session: add_columns(session, PostgresColumns(), COLUMNS),
        servers,
    )


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


@dataclass(frozen=True, slots=True)
class KeptVerification:
    """Whether the prediction held after shared_buffers was changed."""

    server: str
    verification: ServeVerification


Item = Sample | Gap | KeptCurve | KeptVerification | Interval


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
    """Writes the history in a thread of its own.

    Args:
        store: where; is opened.
        most_bytes: of it.

    Raises:
        PgsweepError: it cannot be opened, or is of a newer pgsweep. A database that cannot be reached is
            waited for.
    """

    def __init__(self, store: Store, *, most_bytes: int) -> None:
        self.store = store
        self._most_bytes = most_bytes
        self._waiting: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._held: list[Item] = []
        self._state = _State()
        self._swept = 0.0
        self._clock = Clock()
        try:
            store.open()
        except ConnectionFailed as error:
            self._state.trouble = _not_written(error)
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

    def stop(self, patience_seconds: float = 10.0) -> bool:
        """Write what waits, and close; return whether that was done in time.

        Args:
            patience_seconds: how long is waited for it.
        """
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(patience_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._round():
                pass
        finally:
            self.store.close()

    def _round(self) -> bool:
        """Write what has come; return whether there may be more."""
        going_on = True
        with contextlib.suppress(queue.Empty):
            item = self._waiting.get(timeout=5.0 if self._held or self._state.trouble else 60.0)
            while item is not None:
                self._held.append(item)
                item = self._waiting.get_nowait()
            going_on = False
        try:
            self._write_held()
            if time.monotonic() - self._swept >= _SWEEP_SECONDS or not going_on:
                self._swept = time.monotonic()
                self._sweep()
        except PgsweepError as error:
            self._state.trouble = _not_written(error)
            self._lose_what_is_too_much()
        return going_on

    def _write_held(self) -> None:
        if self._held or self._state.trouble is not None:
            with self.store.writing() as session:
                ids: dict[str, int] = {}
                for item in self._held:
                    _write(session, item, ids)
                for name, (begin, end) in self._state.lost.items():
                    why = self._state.trouble or "the history was not written"
                    _write(session, Gap(name, begin, end, why), ids)
        self._held.clear()
        self._state.lost.clear()
        self._state.trouble = None

    def _sweep(self) -> None:
        """Make the coarser levels, and drop what is too old or too much."""
        if not self.store.is_keeper():
            return
        now, drop = time.time(), self._clock.is_steady()
        with self.store.writing() as session:
            roll_up(session, now, drop=drop)
            history_consumers.roll_up(session, now, drop=drop)
        keep_to(self.store, self._most_bytes, now)

    def _lose_what_is_too_much(self) -> None:
        """Drop the oldest of what waits beyond the limit, and remember for which time that was."""
        while len(self._held) > _WAITING:
            item = self._held.pop(0)
            if isinstance(item, Sample):
                begin, end = self._state.lost.get(item.server, (item.at, item.at))
                self._state.lost[item.server] = (min(begin, item.at), max(end, item.at))


def _not_written(error: PgsweepError) -> str:
    text = error.message
    return text if text.startswith("the history") else f"the history is not written: {text}"


def _write(session: Session, item: Item, ids: dict[str, int]) -> None:
    server = ids.setdefault(item.server, 0) or id_of(session, item.server)
    ids[item.server] = server
    if isinstance(item, Sample):
        session.execute(_PUT_SAMPLE, [server, int(item.at), *(item.values.get(name) for name in COLUMNS)])
    elif isinstance(item, Gap):
        session.execute(_PUT_GAP, [server, float(item.begin), float(item.end), item.why])
    elif isinstance(item, Interval):
        history_consumers.write(session, server, item.at, item.seconds, item.rows)
    elif isinstance(item, KeptVerification):
        found = item.verification
        session.execute(_PUT_VERIFICATION, [server, int(found.changed_at), msgspec.json.encode(found)])
    else:
        curve = item.curve
        values = [server, int(curve.at), curve.window_seconds, msgspec.json.encode(curve)]
        session.execute(_PUT_CURVE, values)


def id_of(session: Session, name: str) -> int:
    """Return the number of a server, which it gets with its first item."""
    found = session.execute("SELECT id FROM main.servers WHERE name = ?", [name])
    if not found:
        session.execute("INSERT INTO main.servers (name) VALUES (?) ON CONFLICT (name) DO NOTHING", [name])
        return id_of(session, name)
    return int(found[0][0])


def roll_up(session: Session, now: float, *, drop: bool = True) -> None:
    """Make the coarser levels of the finer ones, as far as their steps are over, and drop what is too old.

    What a clock that was ahead has left in the future does not prevent new values until then.
    """
    columns = ", ".join(COLUMNS)
    made = ", ".join([f"sum({name})" for name in SUMS] + [f"avg({name})" for name in GAUGES])
    again = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS)
    for finer, step in itertools.pairwise(LEVELS):
        # The last ones made are made again: they may have been incomplete.
        session.execute(
            f"INSERT INTO main.samples (level, server, at, {columns}) "  # noqa: S608
            f"SELECT {step}, server, ((at - 1) / {step} + 1) * {step} AS step, {made} FROM main.samples "
            "JOIN (SELECT id, coalesce((SELECT max(s.at) FROM main.samples AS s WHERE s.level = ? "
            "AND s.server = id AND s.at <= ?), 0) AS done FROM main.servers) AS known ON known.id = server "
            "WHERE level = ? AND at > done - ? GROUP BY server, step "
            f"ON CONFLICT (level, server, at) DO UPDATE SET {again}",
            [step, int(now) + step, finer, 2 * step],
        )
    if not drop:
        return
    for step, kept in LEVELS.items():
        session.execute("DELETE FROM main.samples WHERE level = ? AND at < ?", [step, int(now) - kept])
    session.execute("DELETE FROM main.curves WHERE at < ?", [int(now) - _KEPT_CURVES_SECONDS])
    session.execute("DELETE FROM main.verifications WHERE at < ?", [int(now) - _KEPT_CURVES_SECONDS])
    session.execute("DELETE FROM main.gaps WHERE ended < ?", [now - LEVELS[900]])


def keep_to(store: Store, most_bytes: int, now: float) -> None:
    """Remove the oldest of the finest level, then of the next, until no more than `most_bytes` are left."""
    if store.size_bytes(most_bytes) <= most_bytes:
        return
    for table, levels in (("consumers", history_consumers.LEVELS), ("samples", LEVELS)):
        for step in levels:
            while store.size_bytes(most_bytes) > most_bytes and _drop_oldest(store, table, step, now):
                store.reclaim()


def _drop_oldest(store: Store, table: str, step: int, now: float) -> bool:
    """Remove the oldest tenth of a level; return whether there was any that may go."""
    with store.writing() as session:
        oldest = session.execute(f"SELECT min(at) FROM main.{table} WHERE level = ?", [step])[0][0]  # noqa: S608
        if oldest is None or oldest > now - 4 * step:
            return False
        until = oldest + max(step, int(now - oldest) // 10)
        session.execute(f"DELETE FROM main.{table} WHERE level = ? AND at <= ?", [step, until])  # noqa: S608
    return True
