"""Indexes, constraints, keys and triggers made again, several at once where possible; and the progress."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from pgsweep.load.copying import LoadListener
from pgsweep.load.document import LoadDocument
from pgsweep.pg.connect import Connection
from pgsweep.pg.failures import DriverError
from pgsweep.pg.load_copy import open_session
from pgsweep.pg.load_journal import UNLOGGED, JournalObject, LoadId
from pgsweep.pg.load_progress import build_progress
from pgsweep.pg.load_work import CannotMake, failure_of, make_object
from pgsweep.records.load import LoadStep

_POLL_SECONDS: Final = 0.2
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
        control: the session that holds the claim; it only watches.
        stop: ends it after the builds that are under way.
        rolling_back: the rows of the load are gone.
    """

    def __init__(
        self,
        conninfo: str,
        control: Connection,
        load_id: LoadId,
        document: LoadDocument,
        *,
        listener: LoadListener,
        stop: threading.Event,
        rolling_back: bool,
    ) -> None:
        self._conninfo = conninfo
        self._control = control
        self._load_id = load_id
        self._document = document
        self._listener = listener
        self._stop = stop
        self._rolling_back = rolling_back
        self._lock = threading.Lock()
        self._failed: Exception | None = None
        self.problems: list[CannotMake] = []
        self.steps: list[LoadStep] = []

    def run(self, missing: Missing) -> bool:
        """Make all that can be made; return False if it was stopped before.

        What cannot be made is in `problems`; what needs it is left out.

        Raises:
            PgsweepError: a lock cannot be obtained, or the server is gone.
        """
        for stage in sorted({entry.stage for _, entry in missing}):
            if self._stop.is_set():
                return False
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
                self._listener.stage(_TITLES[stage])
                self._stage(wanted, at_once=stage == 0)
            if self._failed is not None:
                raise self._failed
        return not self._stop.is_set()

    def _stage(self, wanted: Missing, *, at_once: bool) -> None:
        most = max(2, min(_MOST_BUILDS, os.cpu_count() or 2))
        sessions = min(len(wanted), most) if at_once else 1
        memory = self._document.plan.maintenance_work_mem_bytes // sessions
        waiting = list(wanted)
        threads = [
            threading.Thread(
                target=self._work, args=(waiting, memory, None if sessions == 1 else 0), daemon=True
            )
            for _ in range(sessions)
        ]
        for thread in threads:
            thread.start()
        shown = time.monotonic()
        for thread in threads:
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                if time.monotonic() - shown >= _SHOWN_EVERY_SECONDS:
                    shown = time.monotonic()
                    self._show(wanted)

    def _show(self, wanted: Missing) -> None:
        names = ", ".join(entry.name for _, entry in wanted)
        for phase, share in build_progress(self._control, self._document.table.oid):
            self._listener.building(names, phase, share)

    def _work(self, waiting: Missing, memory: int, workers: int | None) -> None:
        try:
            with open_session(self._conninfo, self._document.table.oid) as connection:
                while self._failed is None and not self._stop.is_set():
                    with self._lock:
                        if not waiting:
                            return
                        number, entry = waiting.pop(0)
                    self._make(connection, number, entry, memory, workers)
        except DriverError as error:
            self._failed = self._failed or failure_of(error)
        except Exception as error:
            self._failed = self._failed or error

    def _make(
        self, connection: Connection, number: int, entry: JournalObject, memory: int, workers: int | None
    ) -> None:
        begin = time.monotonic()
        try:
            make_object(
                connection,
                self._document.table,
                number,
                entry,
                load_id=self._load_id,
                path=self._document.path,
                memory_bytes=memory,
                workers=workers,
                rolling_back=self._rolling_back,
                note=self._listener.note,
            )
        except CannotMake as problem:
            with self._lock:
                self.problems.append(problem)
            return
        with self._lock:
            self.steps.append(LoadStep(what=entry.title, seconds=round(time.monotonic() - begin, 3)))


def make_all_here(
    connection: Connection, document: LoadDocument, objects: Sequence[JournalObject]
) -> list[LoadStep]:
    """Make objects again in the transaction that is open, one after the other.

    Raises:
        CannotMake: one cannot be made; the transaction is as it was before it.
        PgsweepError: another failure.
    """
    steps = []
    for number, entry in enumerate(objects):
        begin = time.monotonic()
        try:
            make_object(
                connection,
                document.table,
                number,
                entry,
                load_id=None,
                path=document.path,
                memory_bytes=document.plan.maintenance_work_mem_bytes,
            )
        except DriverError as error:
            raise failure_of(error) from error
        steps.append(LoadStep(what=entry.title, seconds=round(time.monotonic() - begin, 3)))
    return steps
