"""Kill a load at random points (the loader, or the server by an immediate stop), then resume or roll back.

After that the catalog must be equal to what it was, and the rows equal to the file and what was there before,
or to what was there before alone.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from pgsweep.pg.load.catalog import read_facts
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.userpath import resolve_relation

PGSWEEP = str(Path(sys.executable).with_name("pgsweep"))
SETTINGS = {
    "shared_buffers": "64MB",
    "max_connections": "30",
    # A crash of the server is a part of the test: what is committed must be there after it.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "wal_level": "replica",
    "max_wal_size": "512MB",
}
_SETUP = """
CREATE TABLE parent (id int PRIMARY KEY);
INSERT INTO parent SELECT generate_series(0, 999);
CREATE TABLE t (id int, a int, b text, c numeric,
  CONSTRAINT t_key PRIMARY KEY (id) WITH (fillfactor = 80),
  CONSTRAINT t_unique UNIQUE (b) DEFERRABLE,
  CONSTRAINT t_parent FOREIGN KEY (a) REFERENCES parent ON DELETE CASCADE);
CREATE INDEX t_lower ON t (lower(b)) WHERE id > 10;
COMMENT ON INDEX t_lower IS 'a comment';
COMMENT ON CONSTRAINT t_parent ON t IS 'the parent';
ALTER TABLE t CLUSTER ON t_key;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER t_note BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION note();
"""
_FILL = "INSERT INTO t SELECT -g, g % 1000, 'old' || g, g / 7.0 FROM generate_series(1, 5000) g"
_CONTENT = (
    "SELECT count(*)::int8, coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text,"
    " count(DISTINCT id)::int8 FROM t"
)


@dataclass(frozen=True)
class Case:
    """One crash.

    Attributes:
        at: when it was measured.
        victim: `loader` or `server`.
        then: `resume` or `rollback`.
        filled: the table had rows before.
        unlogged: it was UNLOGGED while rows were copied.
        point: what the crash was timed from: the `begin` of the command, or of the `journal`, a number of
            `pieces` that were copied, or the beginning of `rebuilding`.
        delay_seconds: after that.
        ended: the load was over when the crash came.
        phase: of the journal after the crash; `none` where there was no journal.
        pieces: that the journal had then.
        found: the number of rows then.
        again: the phase after the resume or rollback was crashed too; empty where it was not.
        failures: what was not as it must be.
    """

    at: str
    victim: str
    then: str
    filled: bool
    unlogged: bool
    point: str
    delay_seconds: float
    ended: bool
    phase: str
    pieces: int
    found: int
    again: str
    failures: list[str]


@contextmanager
def crashing_server() -> Iterator[Cluster]:
    """A server that keeps its promises over a crash."""
    with Cluster.create(None, SETTINGS) as cluster:
        yield cluster


def write_file(path: Path, rows: int) -> None:
    """Write the file: with quotes, line feeds within fields, and a header."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("id,b,a,c\n")
        for number in range(1, rows + 1):
            file.write(
                f'{number},"new ""{number}"",\n{"x" * (number % 50)}",{number % 1000},{number / 7:.5f}\n'
            )


class Crashes:
    """Crashes of loads of one file into one table.

    Args:
        cluster: its server is stopped and started again.
        folder: for the file and the state of the loader.
        rows: of the file.
    """

    def __init__(self, cluster: Cluster, folder: Path, rows: int, rng: random.Random) -> None:
        self._cluster = cluster
        self._folder = folder
        self._rng = rng
        self._file = folder / "rows.csv"
        self._rows = rows
        write_file(self._file, rows)
        with self._session() as connection:
            connection.execute(_SETUP.encode())
        self._facts = self._read_facts()
        self._wanted = {filled: self._content_when_loaded(filled) for filled in (False, True)}
        self._measure()

    def one(self, victim: str, then: str, *, filled: bool, unlogged: bool) -> Case:
        """Load, crash, resume or roll back (once in three times crash that too), and compare."""
        rng = self._rng
        self._fill(filled)
        before = self._content()
        process = self._start(*(["--unlogged"] if unlogged else []))
        # Before the journal nothing is at stake.
        point = rng.choices(("begin", "journal", "pieces", "rebuilding"), (1, 1, 4, 2))[0]
        delay = self._wait_for_point(process, point)
        time.sleep(delay)
        ended = process.poll() is not None
        self._crash(process, victim)
        (phase, pieces), found, again = self._phase(), self._content()[0], ""
        if phase != "none" and rng.random() < 1 / 3:
            process = self._later(then)
            time.sleep(rng.uniform(0.0, self.span_seconds))
            self._crash(process, victim)
            again = self._phase()[0]
        gone = phase == "none" or again == "none"
        later = self._later(then)
        _, errors = later.communicate(timeout=300)
        failures = []
        after = self._content()
        if gone:
            # There is nothing to resume: it had not begun, or had ended.
            if later.returncode == 0 or b"is unfinished" not in errors:
                failures.append(f"without a journal: {errors.decode()}")
            allowed = [self._wanted[filled], before]
            if again == "none":
                allowed = [self._wanted[filled] if then == "resume" else before]
            if after not in allowed:
                failures.append(f"rows without a journal: {after}")
        else:
            if later.returncode != 0:
                failures.append(f"{then}: {errors.decode()}")
            if after != (self._wanted[filled] if then == "resume" else before):
                failures.append(f"rows after {then}: {after}")
        if self._read_facts() != self._facts:
            failures.append(f"the catalog differs after {then}")
        if self._phase()[0] != "none":
            failures.append("the journal is still there")
        return Case(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            victim=victim,
            then=then,
            filled=filled,
            unlogged=unlogged,
            point=point,
            delay_seconds=round(delay, 4),
            ended=ended,
            phase=phase,
            pieces=pieces,
            found=found,
            again=again,
            failures=failures,
        )

    def _crash(self, process: subprocess.Popen[bytes], victim: str) -> None:
        if victim == "server":
            self._cluster.stop(immediately=True)
            process.communicate(timeout=300)
            self._cluster.start()
        else:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=300)

    def _wait_for_point(self, process: subprocess.Popen[bytes], point: str) -> float:
        """Wait until the load is so far, and return how many seconds later it is to be crashed."""
        if point == "begin":
            return self._rng.uniform(0.0, self.span_seconds)
        self._wait_for_journal(process)
        if point == "journal":
            return self._rng.uniform(0.0, self.work_seconds)
        wanted = self._rng.randrange(self.pieces) if point == "pieces" else self.pieces + 1
        with self._session() as session:
            while process.poll() is None:
                phase, pieces = _phase_of(session)
                if phase == "rebuilding" or pieces >= wanted:
                    break
                time.sleep(0.002)
        part = self.rebuild_seconds if point == "rebuilding" else self.copy_seconds / self.pieces
        return self._rng.uniform(0.0, part)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        return self._command([str(self._file), "t", *self._options(), *words])

    def _later(self, then: str) -> subprocess.Popen[bytes]:
        return self._command(["--" + then, "t", "-d", self._cluster.conninfo(), "--no-progress"])

    def _command(self, words: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [PGSWEEP, "load", *words],
            env={**os.environ, "XDG_STATE_HOME": str(self._folder / "state")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def _options(self) -> list[str]:
        jobs = ["--jobs", "2", "--piece", "128kB", "--indexes", "drop", "--disable-triggers"]
        return ["-d", self._cluster.conninfo(), "--yes", "--no-progress", *jobs]

    def _measure(self) -> None:
        """Time a load that nothing cuts short: all of it, with its journal, copying, rebuilding."""
        self._fill(filled=False)
        begin = time.monotonic()
        process = self._start()
        self._wait_for_journal(process)
        begun = copied = time.monotonic()
        self.pieces = 1
        with self._session() as session:
            while process.poll() is None:
                phase, pieces = _phase_of(session)
                self.pieces = max(self.pieces, pieces)
                if phase == "copying":
                    copied = time.monotonic()
                time.sleep(0.01)
        if process.wait() != 0:
            raise RuntimeError("the load fails by itself")
        process.communicate()
        end = time.monotonic()
        self.span_seconds, self.work_seconds = end - begin, end - begun
        self.copy_seconds, self.rebuild_seconds = copied - begun, end - copied

    def _wait_for_journal(self, process: subprocess.Popen[bytes]) -> None:
        with self._session() as session:
            while process.poll() is None and _phase_of(session)[0] == "none":
                time.sleep(0.005)

    def _fill(self, filled: bool) -> None:
        with self._session() as connection:
            connection.execute("TRUNCATE t")
            if filled:
                connection.execute(_FILL.encode())

    def _content_when_loaded(self, filled: bool) -> tuple[Any, ...]:
        self._fill(filled)
        statement = "COPY t (id, b, a, c) FROM STDIN (FORMAT csv, HEADER)"
        with self._session() as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(self._file.read_bytes())
        return self._content()

    def _content(self) -> tuple[Any, ...]:
        with self._session() as connection:
            row = connection.execute(_CONTENT.encode()).fetchone()
        assert row is not None
        return tuple(row)

    def _read_facts(self) -> list[tuple[str, str]]:
        with connect(self._cluster.conninfo()) as connection:
            return read_facts(connection, resolve_relation(connection, "t"))

    def _phase(self) -> tuple[str, int]:
        with self._session() as session:
            return _phase_of(session)

    def _session(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._cluster.conninfo(), autocommit=True)


def _phase_of(session: psycopg.Connection[Any]) -> tuple[str, int]:
    """Return the phase of the journal, `none` without one, and how many pieces it has."""
    query = "SELECT l.phase, (SELECT count(*) FROM pgsweep_load.piece)::int4 FROM pgsweep_load.load AS l"
    try:
        row = session.execute(query).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return "none", 0
    return ("none", 0) if row is None else (str(row[0]), int(row[1]))


def crash_cases(cluster: Cluster, folder: Path, rows: int, seed: int) -> Iterator[Case]:
    """Yield crashes without end, of all kinds in turn."""
    rng = random.Random(seed)
    crashes = Crashes(cluster, folder, rows, rng)
    kinds = [
        (victim, then, filled, unlogged)
        for filled, unlogged in ((True, False), (False, False), (False, True))
        for victim in ("loader", "server")
        for then in ("resume", "rollback")
    ]
    for victim, then, filled, unlogged in itertools.cycle(kinds):
        case = crashes.one(victim, then, filled=filled, unlogged=unlogged)
        print(case, file=sys.stderr, flush=True)
        yield case
