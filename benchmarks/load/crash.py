"""Kill a load at random points (the loader, or the server by an immediate stop), then resume or roll back.

After that the catalog must be equal to what it was, and the rows equal to the file and what was there before,
or to what was there before alone.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgsweep.pg.cluster import Cluster
from pgsweep.pg.connect import connect
from pgsweep.pg.load_catalog import read_facts
from pgsweep.pg.userpath import resolve_relation

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
        victim: `loader` or `server`.
        then: `resume` or `rollback`.
        from_begin: the delay was counted from when the journal was there.
        phase: of the journal after the crash; `none` where there was no journal.
        found: the number of rows after the crash.
        failures: what was not as it must be.
    """

    victim: str
    then: str
    filled: bool
    from_begin: bool
    delay_seconds: float
    ended: bool
    phase: str
    found: int
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
        self.span_seconds, self.work_seconds = self._span()

    def one(self, victim: str, then: str, *, filled: bool) -> Case:
        """Load, crash, resume or roll back, and compare."""
        self._fill(filled)
        before = self._content()
        process = self._start()
        # Three of four from when the journal is there: before it nothing is at stake.
        if from_begin := self._rng.random() < 0.75:
            self._wait_for_journal(process)
        delay = self._rng.uniform(0.0, self.work_seconds if from_begin else self.span_seconds)
        time.sleep(delay)
        ended = process.poll() is not None
        if victim == "server":
            self._cluster.stop(immediately=True)
            process.wait(120)
            self._cluster.start()
        else:
            process.send_signal(signal.SIGKILL)
            process.wait()
        phase, found = self._phase(), -1
        done = self._pgsweep("--" + then, "t")
        failures = []
        after = self._content()
        found = after[0]
        if phase == "none":
            # There is nothing to resume: it had not begun, or had ended.
            if done.returncode == 0 or "is unfinished" not in done.stderr:
                failures.append(f"without a journal: {done.stderr}")
            if after not in (before, self._wanted[filled]):
                failures.append(f"rows without a journal: {after}")
        else:
            if done.returncode != 0:
                failures.append(f"{then}: {done.stderr}")
            if after != (self._wanted[filled] if then == "resume" else before):
                failures.append(f"rows after {then}: {after}")
        if self._read_facts() != self._facts:
            failures.append(f"the catalog differs after {then}")
        if self._phase() != "none":
            failures.append("the journal is still there")
        return Case(victim, then, filled, from_begin, round(delay, 4), ended, phase, found, failures)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [PGSWEEP, "load", str(self._file), "t", *self._options()],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _options(self) -> list[str]:
        jobs = ["--jobs", "2", "--piece", "128kB", "--indexes", "drop", "--disable-triggers"]
        return ["-d", self._cluster.conninfo(), "--yes", "--no-progress", *jobs]

    def _pgsweep(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PGSWEEP, "load", *words, "-d", self._cluster.conninfo(), "--no-progress"],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self._folder / "state")}

    def _span(self) -> tuple[float, float]:
        self._fill(filled=False)
        begin = time.monotonic()
        process = self._start()
        self._wait_for_journal(process)
        begun = time.monotonic()
        if process.wait(600) != 0:
            raise RuntimeError("the load fails by itself")
        return time.monotonic() - begin, time.monotonic() - begun

    def _wait_for_journal(self, process: subprocess.Popen[bytes]) -> None:
        with self._session() as session:
            while process.poll() is None:
                found = session.execute("SELECT to_regclass('pgsweep_load.load') IS NOT NULL").fetchone()
                if found == (True,):
                    return
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

    def _phase(self) -> str:
        with self._session() as connection:
            if connection.execute("SELECT to_regclass('pgsweep_load.load') IS NULL").fetchone() == (True,):
                return "none"
            row = connection.execute("SELECT phase FROM pgsweep_load.load").fetchone()
        return "none" if row is None else str(row[0])

    def _session(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._cluster.conninfo(), autocommit=True)


def crash_cases(cluster: Cluster, folder: Path, number: int, rows: int, seed: int) -> list[Case]:
    """Return that many crashes, of all kinds in turn."""
    rng = random.Random(seed)
    crashes = Crashes(cluster, folder, rows, rng)
    kinds = [
        (victim, then, filled)
        for filled in (True, False)
        for victim in ("loader", "server")
        for then in ("resume", "rollback")
    ]
    cases = []
    for at in range(number):
        victim, then, filled = kinds[at % len(kinds)]
        cases.append(crashes.one(victim, then, filled=filled))
        print(cases[-1], file=sys.stderr, flush=True)
    return cases
