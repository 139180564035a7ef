"""Indexes, constraints, keys and triggers made again, several at once where possible; and the progress."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from pgsweep.load.copying import Running, Threads, step_since
from pgsweep.load.document import LoadDocument
from pgsweep.pg.load.copy import open_session
from pgsweep.pg.load.journal import UNLOGGED, JournalObject
from pgsweep.pg.load.progress import build_progress
from pgsweep.pg.load.work import Build, CannotMake, failure_of, make_object
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.failures import DriverError
from pgsweep.records.load import LoadStep

_SHOWN_EVERY_SECONDS: Final = 1.0
_MOST_BUILDS: Final = 4

_TITLES: Final = {
    -1: "making the table logged",
    0: "making indexes",
    1: "making constraints",
    2: "adding foreign keys",
    3: "validating foreign keys",
    4: "enabling triggers",
}

Missing = list[tuple[int, JournalObject]]


class Rebuild:
    """Makes objects again by several sessions, stage after stage.

    Args:
        running: its session only watches; a stop ends it after the builds that are under way.
        rolling_back: the rows of the load are gone.
    """

    def __init__(self, running: Running, *, rolling_back: bool) -> None:
        self._running = running
        self._document = running.document
        self._rolling_back = rolling_back
        self._lock = threading.Lock()
        self._shown = time.monotonic()
        self.problems: list[CannotMake] = []
        self.steps: list[LoadStep] = []

    def run(self, missing: Missing) -> bool:
        """Make all that can be made; return False if it was stopped before.

        What cannot be made is in `problems`; what needs it is left out.

        Raises:
            PgsweepError: a lock cannot be obtained, or the server is gone.
        """
        for stage in sorted({entry.stage for _, entry in missing}):
            if any(problem.entry_kind == UNLOGGED for problem in self.problems):
                # An index of an unlogged table would be lost with it.
                return True
            without = {problem.entry_name for problem in self.problems}
            wanted = [
                (number, entry)
                for number, entry in missing
                if entry.stage == stage and entry.name not in without
            ]
            if wanted:
                if self._running.stop.is_set():
                    return False
                self._running.listener.stage(_TITLES[stage])
                if not self._stage(wanted, at_once=stage == 0):
                    return False
        return True

    def _stage(self, wanted: Missing, *, at_once: bool) -> bool:
        """Return whether all was tried; a stop that came with the last one has left nothing to do."""
        most = max(2, min(_MOST_BUILDS, os.cpu_count() or 2))
        sessions = min(len(wanted), most) if at_once else 1
        memory = self._document.plan.maintenance_work_mem_bytes // sessions
        build = Build(self._document.path, memory, None if sessions == 1 else 0)
        waiting = list(wanted)

        def work() -> None:
            with open_session(self._running.conninfo, self._document.table.oid) as connection:
                while threads.failed is None and not self._running.stop.is_set():
                    with self._lock:
                        if not waiting:
                            return
                        number, entry = waiting.pop(0)
                    self._make(connection, number, entry, build)

        threads = Threads(work, sessions)
        threads.start()
        threads.join(lambda: self._show(wanted))
        return not waiting

    def _show(self, wanted: Missing) -> None:
        if time.monotonic() - self._shown < _SHOWN_EVERY_SECONDS:
            return
        self._shown = time.monotonic()
        names = ", ".join(entry.name for _, entry in wanted)
        for phase, share in build_progress(self._running.control, self._document.table.oid):
            self._running.listener.building(names, phase, share)

    def _make(self, connection: Connection, number: int, entry: JournalObject, build: Build) -> None:
        begin = time.monotonic()
        try:
            make_object(
                connection,
                self._document.table,
                number,
                entry,
                load_id=self._running.load_id,
                build=build,
                rolling_back=self._rolling_back,
                note=self._running.listener.note,
            )
        except CannotMake as problem:
            with self._lock:
                self.problems.append(problem)
            return
        with self._lock:
            self.steps.append(step_since(entry.title, begin))


def make_all_here(
    connection: Connection, document: LoadDocument, objects: Sequence[JournalObject]
) -> list[LoadStep]:
    """Make objects again in the transaction that is open, one after the other.

    Raises:
        CannotMake: one cannot be made; the transaction is as it was before it.
        PgsweepError: another failure.
    """
    steps, build = [], Build(document.path, document.plan.maintenance_work_mem_bytes)
    for number, entry in enumerate(objects):
        begin = time.monotonic()
        try:
            make_object(connection, document.table, number, entry, load_id=None, build=build)
        except DriverError as error:
            raise failure_of(error) from error
        steps.append(step_since(entry.title, begin))
    return steps
