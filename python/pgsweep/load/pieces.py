"""One run of a load in pieces: journal, objects dropped, pieces copied, objects made again, rows removed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from pgsweep.errors import PgsweepError
from pgsweep.load.copying import Copier, LoadListener, unmoved_sequences
from pgsweep.load.document import LoadDocument, LocalJournal, remove_local, write_local
from pgsweep.load.objects import objects_of
from pgsweep.load.rebuild import Rebuild
from pgsweep.load.refusing import Refused
from pgsweep.load.rejects import write_rejects
from pgsweep.load.source import ChangedFile, InputError
from pgsweep.load.unlogged import not_empty
from pgsweep.pg.connect import Connection
from pgsweep.pg.conninfo import place_of
from pgsweep.pg.failures import DriverError
from pgsweep.pg.load_catalog import (
    Catalog,
    Column,
    changed_since_plan,
    differences,
    hindering,
    read_catalog,
    read_facts,
    read_hindrances,
)
from pgsweep.pg.load_copy import WrongCount, open_session
from pgsweep.pg.load_journal import (
    UNLOGGED,
    JournalObject,
    LoadId,
    Phase,
    begin_load,
    end_load,
    is_alive,
    mark_alive,
    read_objects,
    read_pieces,
    read_rejects,
    set_document,
    set_phase,
    set_present,
)
from pgsweep.pg.load_lock import in_short_lock, lock_statement
from pgsweep.pg.load_progress import wal_position
from pgsweep.pg.load_work import (
    CannotMake,
    CannotRemove,
    adopt_object,
    analyze,
    begin_again,
    drop_objects,
    failure_of,
    is_empty,
    remove_rows,
)
from pgsweep.records.load import LoadOutcome, LoadStep
from pgsweep.units import format_many


class PieceRun:
    """One run of a load in pieces.

    Args:
        before: what the catalog said of the table, where an earlier run has begun the load.
    """

    def __init__(
        self,
        conninfo: str,
        control: Connection,
        load_id: LoadId,
        document: LoadDocument,
        columns: Sequence[Column],
        listener: LoadListener,
        stop: threading.Event,
        *,
        before: list[tuple[str, str]] | None = None,
    ) -> None:
        self._conninfo = conninfo
        self._control = control
        self._load_id = load_id
        self._document = document
        self._columns = columns
        self._listener = listener
        self._stop = stop
        self._steps: list[LoadStep] = []
        self._wal = wal_position(control)
        self._notes: list[str] = []
        self.resumed = self._stays = before is not None
        self.before = before or []

    def begin(self, catalog: Catalog, objects: list[JournalObject], place: Path | None) -> None:
        """Write the journal, here and there; then drop what is dropped."""
        self.before = catalog.facts
        if place is not None:
            write_local(
                place,
                LocalJournal(
                    load_id=self._load_id.id,
                    server=place_of(self._conninfo),
                    database=self._control.info.dbname,
                    table=self._document.table.quoted,
                    files=[entry.path for entry in self._document.inputs],
                    restore=[statement for entry in objects for statement in entry.make],
                    objects=objects,
                    before=catalog.facts,
                ),
            )
        oid = self._document.table.oid
        # A limit of connections must be found before anything is dropped.
        with ExitStack() as sessions:
            for _ in range(self._document.jobs):
                sessions.enter_context(open_session(self._conninfo))
        begin_load(self._control, self._load_id, oid, self._document.text(), catalog.facts, objects)
        self._stays = True
        try:
            self.drop(objects)
        except (PgsweepError, DriverError):
            # That transaction was undone, so there is nothing to restore.
            with suppress(DriverError, PgsweepError):
                self._remove_journal()
            raise

    def drop(self, objects: list[JournalObject]) -> None:
        """Drop and disable, in one transaction with the phase that says so."""
        table = self._document.table

        def work() -> None:
            changed = read_facts(self._control, table.oid) != self.before
            off = self._document.options.disable_triggers
            if changed or hindering(read_hindrances(self._control, table.oid), triggers_off=off):
                raise changed_since_plan()
            if self._document.truncatable and is_empty(self._control, table):
                self._document = msgspec.structs.replace(self._document, may_truncate=True)
                set_document(self._control, self._load_id, self._document.text())
            if self._document.options.unlogged:
                if not is_empty(self._control, table):
                    raise not_empty(table.quoted)
                mark_alive(self._control, self._load_id)
            drop_objects(self._control, objects)
            set_present(self._control, self._load_id, None, present=False)
            set_phase(self._control, self._load_id, "copying")

        begin = time.monotonic()
        lock = lock_statement(table, "ACCESS EXCLUSIVE" if objects else "SHARE")
        in_short_lock(self._control, table, lock, work, note=self._listener.note)
        self._step("dropping", begin)

    def real_phase(self, phase: Phase) -> Phase:
        """Return the phase in which the load is, by what is in the table, and note it.

        It is the copying again where a crash of the server has emptied the UNLOGGED table. Earlier versions
        noted the phase `rolling back` before they removed rows: with pieces in the journal, none is removed.
        """
        if phase == "rolling back" and read_pieces(self._control, self._load_id):
            phase = "copying"
            set_phase(self._control, self._load_id, phase)
        missing = {
            entry.kind for _, entry, present in read_objects(self._control, self._load_id) if not present
        }
        if UNLOGGED not in missing or is_alive(self._control, self._load_id):
            return phase
        table = self._document.table
        self._listener.note(f"a crash of the server has emptied {table.quoted}, which was UNLOGGED")
        begin_again(self._control, table, self._load_id, note=self._listener.note)
        if phase == "rebuilding":
            set_phase(self._control, self._load_id, "copying")
            return "copying"
        return phase

    @contextmanager
    def said(self, *, rolling_back: bool = False) -> Iterator[None]:
        """Have each error say what is dropped still, and how the load is ended."""
        try:
            yield
        except (PgsweepError, DriverError) as error:
            ours = error if isinstance(error, PgsweepError) else failure_of(error)
            ways = self._document.table.ways
            if self._stays and not ways.are_in(ours.hint):
                again = f"undo the load: {ways.rollback}" if rolling_back else ways.either
                with suppress(DriverError, PgsweepError):
                    if missing := self._missing():
                        what = f"{format_many(len(missing), 'object')} that the load dropped"
                        again = f"{what} {'is' if len(missing) == 1 else 'are'} not made again; {again}"
                ours.hint = f"{f'{ours.hint}; ' if ours.hint else ''}{again}"
            raise ours from error

    def copy_and_finish(self, begin: float) -> LoadOutcome:
        """Copy all pieces, then make again what was dropped."""
        with self.said():
            return self._copy_and_finish(begin)

    def _copy_and_finish(self, begin: float) -> LoadOutcome:
        started = time.monotonic()
        self._listener.stage("copying")
        copier = Copier(
            self._conninfo,
            self._load_id,
            self._document,
            self._columns,
            read_pieces(self._control, self._load_id),
            rejected=len(read_rejects(self._control, self._load_id)),
            listener=self._listener,
            stop=self._stop,
        )
        try:
            whole = copier.run()
        except (Refused, InputError, WrongCount) as error:
            raise self._undone(error) from error
        self._step("copying", started)
        if not whole:
            return self._outcome("interrupted", begin, unchanged=None)
        set_phase(self._control, self._load_id, "rebuilding")
        return self.finish(begin)

    def _undone(self, error: PgsweepError) -> PgsweepError:
        ways = self._document.table.ways
        if self._document.options.keep_on_failure:
            if isinstance(error, ChangedFile):
                error.hint = f"undo what was copied: {ways.rollback}; then load the file again"
                return error
            error.hint = f"{error.hint}; what was copied stays, without its indexes; {ways.either}"
            return error
        # What the server says of a refused record is in the message; of a wrong count the cause is all.
        why = f"{error.cause}; " if isinstance(error, WrongCount) else ""
        self._listener.note("rolling the load back")
        self._stop.clear()
        try:
            ended = self.roll_back(time.monotonic()).ended
        except CannotRemove as failed:
            error.cause = f"{why}the load could not be rolled back: {failed.message}; {failed.cause}"
            error.hint = failed.hint
            return error
        if ended != "rolled back":
            error.cause = f"{why}its rows are gone, but not everything dropped is made again"
            error.hint = f"finish that: {ways.rollback}"
            return error
        error.cause = f"{why}the load was rolled back: its rows are gone, everything dropped is made again"
        return error

    def finish(self, begin: float, *, keep_as_is: bool = False, partly: bool = False) -> LoadOutcome:
        """Make again what was dropped, compare the catalog, remove the journal.

        Args:
            keep_as_is: end the load also where an object cannot be made.
            partly: not all pieces are copied.
        """
        with self.said():
            problems, whole = self._rebuild()
        if not whole:
            return self._outcome("interrupted", begin, unchanged=None)
        still_unlogged = any(problem.entry_kind == UNLOGGED for problem in problems)
        if problems and (still_unlogged or not keep_as_is):
            return self._outcome("incomplete", begin, unchanged=False, problems=problems)
        started = time.monotonic()
        self._listener.stage("analyzing")
        if self._document.table.owned:
            vacuum = self._document.options.vacuum
            self._notes += analyze(self._control, self._document.table, self._document.path, vacuum=vacuum)
            self._step("analyzing", started)
        return self._end("kept as it is" if problems or partly else "loaded", begin, partly=partly)

    def roll_back(self, begin: float, *, keep_as_is: bool = False) -> LoadOutcome:
        """Remove the rows, make again what was dropped, remove the journal.

        Args:
            keep_as_is: end the load also where an object cannot be made.
        """
        table = self._document.table
        if read_catalog(self._control, table.oid) is None:
            self._listener.note("the table no longer exists, so there is nothing to restore")
            return self._end("rolled back", begin)
        started = time.monotonic()
        self._listener.stage("removing rows")
        remove_rows(
            self._control,
            table,
            self._load_id,
            read_pieces(self._control, self._load_id),
            first_xid=self._document.first_xid,
            may_truncate=self._document.may_truncate,
            note=self._listener.note,
        )
        self._step("removing rows", started)
        with self.said(rolling_back=True):
            problems, whole = self._rebuild(rolling_back=True)
        if not whole:
            return self._outcome("interrupted", begin, unchanged=None)
        still_unlogged = any(problem.entry_kind == UNLOGGED for problem in problems)
        if problems and (still_unlogged or not keep_as_is):
            return self._outcome("incomplete", begin, unchanged=False, problems=problems)
        return self._end("rolled back", begin)

    def forget(self, begin: float, *, really: bool) -> LoadOutcome:
        """Return what the table would be left with if the journal were removed, or remove it; change nothing.

        Args:
            really: remove it.
        """
        rows = sum(piece.rows for piece in read_pieces(self._control, self._load_id))
        lines = [f"{format_many(rows, 'row')} of the load {'stays' if rows == 1 else 'stay'} in the table"]
        lines += _missing_lines(self._missing())
        outcome = self._outcome("forgotten", begin, unchanged=None, problems=lines)
        if really:
            self._write_rejects()
            self._remove_journal()
        return outcome

    def _write_rejects(self) -> None:
        write_rejects(self._document, read_rejects(self._control, self._load_id))

    def _missing(self) -> list[tuple[int, JournalObject]]:
        return [
            (number, entry)
            for number, entry, present in read_objects(self._control, self._load_id)
            if not present
        ]

    def _rebuild(self, *, rolling_back: bool = False) -> tuple[list[CannotMake], bool]:
        rebuild = Rebuild(
            self._conninfo,
            self._control,
            self._load_id,
            self._document,
            listener=self._listener,
            stop=self._stop,
            rolling_back=rolling_back,
        )
        catalog = read_catalog(self._control, self._document.table.oid)
        there = set() if catalog is None else objects_of(catalog)
        for number, entry in self._missing():
            if (entry.name, entry.definition) in there:
                adopt_object(self._control, self._document.table, number, entry, self._load_id)
        whole = rebuild.run(self._missing())
        self._steps += rebuild.steps
        return list(rebuild.problems), whole

    def _end(self, ended: str, begin: float, *, partly: bool = False) -> LoadOutcome:
        facts = read_facts(self._control, self._document.table.oid)
        changes = differences(self.before, facts) if facts else []
        missing = self._missing() if facts else []
        if missing:
            changes = _missing_lines(missing)
        words = ["not all rows of the files were copied; no later run copies the others"] if partly else []
        unchanged = not changes if facts else None
        outcome = self._outcome(ended, begin, unchanged=unchanged, problems=words + changes)
        if ended != "rolled back":
            self._write_rejects()
        self._remove_journal()
        return outcome

    def _remove_journal(self) -> None:
        end_load(self._control, self._load_id)
        self._stays = False
        remove_local(self._document.journal)

    def _outcome(
        self,
        ended: str,
        begin: float,
        *,
        unchanged: bool | None,
        problems: Sequence[PgsweepError | str] = (),
    ) -> LoadOutcome:
        pieces = read_pieces(self._control, self._load_id)
        wal = wal_position(self._control)
        lines = []
        for problem in problems:
            lines.append(problem if isinstance(problem, str) else problem.message)
            if isinstance(problem, PgsweepError) and problem.hint:
                lines.append(problem.hint)
        rows = sum(piece.rows for piece in pieces)
        stays = rows if ended in ("loaded", "kept as it is") else 0
        return LoadOutcome(
            ended=ended,
            load_id=self._load_id.id,
            rows=rows,
            rejected=len(read_rejects(self._control, self._load_id)),
            copied_bytes=sum(piece.bytes for piece in pieces),
            seconds=round(time.monotonic() - begin, 3),
            wal_bytes=None if wal is None or self._wal is None else wal - self._wal,
            jobs=self._document.jobs,
            resumed=self.resumed,
            unchanged=unchanged,
            steps=self._steps,
            problems=lines,
            rejects_file=self._document.rejects_file,
            journal=self._document.journal if ended in ("interrupted", "incomplete") else None,
            notes=self._notes + unmoved_sequences(self._columns, self._document.plan.columns, stays),
        )

    def _step(self, what: str, begin: float) -> None:
        self._steps.append(LoadStep(what=what, seconds=round(time.monotonic() - begin, 3)))


def _missing_lines(missing: Sequence[tuple[int, JournalObject]]) -> list[str]:
    return [f"missing: {entry.title}; to make it later: {'; '.join(entry.make)}" for _, entry in missing]
