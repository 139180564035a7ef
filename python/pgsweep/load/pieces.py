"""One run of a load in pieces: journal, objects dropped, pieces copied, objects made again, rows removed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from pgsweep.errors import PgsweepError
from pgsweep.load.copying import Copier, Running, step_since, unmoved_sequences
from pgsweep.load.document import LoadDocument, LocalJournal, remove_local, write_local
from pgsweep.load.input.source import ChangedFile, InputError
from pgsweep.load.objects import objects_of
from pgsweep.load.rebuild import Rebuild
from pgsweep.load.refusing import Refused
from pgsweep.load.rejects import leave_rejects, write_rejects
from pgsweep.load.unlogged import not_empty
from pgsweep.pg.load.catalog import (
    changed_since_plan,
    differences,
    hindering,
    read_catalog,
    read_facts,
    read_hindrances,
)
from pgsweep.pg.load.copy import WrongCount, open_session
from pgsweep.pg.load.journal import (
    UNLOGGED,
    JournalObject,
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
from pgsweep.pg.load.lock import in_short_lock, lock_statement
from pgsweep.pg.load.progress import wal_position
from pgsweep.pg.load.work import (
    CannotMake,
    CannotRemove,
    adopt_object,
    analyze,
    begin_again,
    dead_rows,
    drop_objects,
    failure_of,
    is_empty,
    left_to_vacuum,
    remove_rows,
)
from pgsweep.pg.session.conninfo import place_of
from pgsweep.pg.session.failures import DriverError
from pgsweep.records.load import LoadOutcome, LoadStep
from pgsweep.units import format_many


class PieceRun:
    """One run of a load in pieces.

    Args:
        before: what the catalog said of the table before the load.
        resumed: an earlier run has begun the load.
    """

    def __init__(self, running: Running, before: list[tuple[str, str]], *, resumed: bool = False) -> None:
        self._running = running
        self.control, self._load_id = running.control, running.load_id
        self._listener, self._table = running.listener, running.document.table
        self._before = before
        self._resumed = self._stays = resumed
        earlier = read_pieces(self.control, self._load_id) if resumed else []
        self._rows_before = sum(piece.rows for piece in earlier)
        self._begin = time.monotonic()
        self._wal = wal_position(running.control)
        self._steps: list[LoadStep] = []
        self._notes: list[str] = []

    @property
    def document(self) -> LoadDocument:
        """What is loaded and how, with what was measured."""
        return self._running.document

    def begin(self, objects: list[JournalObject]) -> None:
        """Write the journal, here and there; then drop what is dropped."""
        document, conninfo = self._running.document, self._running.conninfo
        if document.journal is not None:
            write_local(
                Path(document.journal),
                LocalJournal(
                    load_id=self._load_id.id,
                    server=place_of(conninfo),
                    database=self.control.info.dbname,
                    table=self._table.quoted,
                    files=[entry.path for entry in document.inputs],
                    restore=[statement for entry in objects for statement in entry.make],
                    objects=objects,
                    before=self._before,
                ),
            )
        # A limit of connections must be found before anything is dropped.
        with ExitStack() as sessions:
            for _ in range(document.plan.jobs):
                sessions.enter_context(open_session(conninfo))
        begin_load(self.control, self._load_id, self._table.oid, document.text(), self._before, objects)
        self._stays = True
        try:
            self._drop(objects)
        except (PgsweepError, DriverError):
            # That transaction was undone, so there is nothing to restore.
            with suppress(DriverError, PgsweepError):
                self._remove_journal()
            raise

    def _drop(self, objects: list[JournalObject]) -> None:
        """Drop and disable, in one transaction with the phase that says so."""
        table, control, document = self._table, self.control, self._running.document

        def work() -> None:
            off = document.options.disable_triggers
            changed = read_facts(control, table.oid) != self._before
            if changed or hindering(read_hindrances(control, table.oid), triggers_off=off):
                raise changed_since_plan()
            if document.truncatable and is_empty(control, table):
                self._running.document = msgspec.structs.replace(document, may_truncate=True)
                set_document(control, self._load_id, self.document.text())
            if document.options.unlogged:
                if not is_empty(control, table):
                    raise not_empty(table.quoted)
                mark_alive(control, self._load_id)
            drop_objects(control, objects)
            set_present(control, self._load_id, None, present=False)
            set_phase(control, self._load_id, "copying")

        begin = time.monotonic()
        lock = lock_statement(table, "ACCESS EXCLUSIVE" if objects else "SHARE")
        in_short_lock(control, table, lock, work, note=self._listener.note)
        if objects:
            self._step("dropping", begin)

    def real_phase(self, phase: Phase) -> Phase:
        """Return the phase in which the load is, by what is in the table, and note it.

        It is the copying again where a crash of the server has emptied the UNLOGGED table. Earlier versions
        noted the phase `rolling back` before they removed rows: with pieces in the journal, none is removed.
        """
        if phase == "rolling back" and read_pieces(self.control, self._load_id):
            phase = "copying"
            set_phase(self.control, self._load_id, phase)
        kinds = {entry.kind for _, entry in self._missing()}
        if UNLOGGED not in kinds or is_alive(self.control, self._load_id):
            return phase
        self._listener.note(f"a crash of the server has emptied {self._table.quoted}, which was UNLOGGED")
        begin_again(self.control, self._table, self._load_id, note=self._listener.note)
        if phase == "rebuilding":
            phase = "copying"
            set_phase(self.control, self._load_id, phase)
        return phase

    @contextmanager
    def said(self, *, rolling_back: bool = False) -> Iterator[None]:
        """Have each error say what is dropped still, and how the load is ended."""
        try:
            yield
        except (PgsweepError, DriverError) as error:
            ours = error if isinstance(error, PgsweepError) else failure_of(error)
            ways = self._table.ways
            if self._stays and not ways.are_in(ours.hint):
                again = f"undo the load: {ways.rollback}" if rolling_back else ways.either
                with suppress(DriverError, PgsweepError):
                    if missing := self._missing():
                        what = f"{format_many(len(missing), 'object')} that the load dropped"
                        again = f"{what} {'is' if len(missing) == 1 else 'are'} not made again; {again}"
                ours.hint = f"{f'{ours.hint}; ' if ours.hint else ''}{again}"
            raise ours from error

    def go_on(self, phase: Phase = "copying") -> LoadOutcome:
        """Copy all pieces, then make again what was dropped; in a later phase only that."""
        if phase == "planned":
            self._drop([entry for _, entry, _ in read_objects(self.control, self._load_id)])
        if phase != "rebuilding":
            started = time.monotonic()
            self._listener.stage("copying")
            rejected = len(read_rejects(self.control, self._load_id))
            copier = Copier(self._running, read_pieces(self.control, self._load_id), rejected)
            try:
                whole = copier.run()
            except (Refused, InputError, WrongCount) as error:
                raise self._undone(error) from error
            self._step("copying", started)
            if not whole:
                return self._outcome("interrupted")
            set_phase(self.control, self._load_id, "rebuilding")
        return self.finish()

    def _undone(self, error: PgsweepError) -> PgsweepError:
        ways = self._table.ways
        leave_rejects(self.document, read_rejects(self.control, self._load_id), error)
        if self.document.options.keep_on_failure:
            if isinstance(error, ChangedFile):
                error.hint = f"undo what was copied: {ways.rollback}; then load the file again"
                return error
            error.hint = f"{error.hint}; what was copied stays; {ways.either}"
            return error
        # What the server says of a refused record is in the message; of a wrong count the cause is all.
        why = f"{error.cause}; " if isinstance(error, WrongCount) else ""
        self._listener.note("rolling the load back")
        self._running.stop.clear()
        again = ", everything dropped is made again" if read_objects(self.control, self._load_id) else ""
        try:
            ended = self.roll_back().ended
        except CannotRemove as failed:
            error.cause = f"{why}the load could not be rolled back: {failed.message}; {failed.cause}"
            error.hint = failed.hint
            return error
        if ended != "rolled back":
            error.cause = f"{why}its rows are gone, but not everything dropped is made again"
            error.hint = f"finish that: {ways.rollback}"
            return error
        error.cause = f"{why}the load was rolled back: its rows are gone{again}"
        return error

    def finish(self, *, keep_as_is: bool = False, partly: bool = False) -> LoadOutcome:
        """Make again what was dropped, compare the catalog, remove the journal.

        Args:
            keep_as_is: end the load also where an object cannot be made.
            partly: not all pieces are copied.
        """
        problems, unfinished = self._rebuild(keep_as_is=keep_as_is)
        if unfinished is not None:
            return unfinished
        started = time.monotonic()
        self._listener.stage("analyzing")
        if self._table.owned:
            vacuum, path = self.document.options.vacuum, self._running.document.path
            self._notes += analyze(self.control, self._table, path, vacuum=vacuum)
            self._step("analyzing", started)
            if not vacuum and read_rejects(self.control, self._load_id):
                self._notes += dead_rows(self.control, self._table)
        return self._end("kept as it is" if problems or partly else "loaded", partly=partly)

    def roll_back(self, *, keep_as_is: bool = False) -> LoadOutcome:
        """Remove the rows, make again what was dropped, remove the journal.

        Args:
            keep_as_is: end the load also where an object cannot be made.
        """
        document = self.document
        if read_catalog(self.control, self._table.oid) is None:
            self._listener.note("the table no longer exists, so there is nothing to restore")
            return self._end("rolled back")
        started = time.monotonic()
        self._listener.stage("removing rows")
        removed = remove_rows(
            self.control,
            self._table,
            self._load_id,
            read_pieces(self.control, self._load_id),
            first_xid=document.first_xid,
            may_truncate=document.may_truncate,
            note=self._listener.note,
        )
        self._step("removing rows", started)
        truncated = document.may_truncate and is_empty(self.control, self._table)
        if self._table.owned and not truncated:
            for line in left_to_vacuum(removed, self._table, "the load was undone"):
                self._listener.note(line)
        with self.said(rolling_back=True):
            _, unfinished = self._rebuild(keep_as_is=keep_as_is, rolling_back=True)
        return unfinished or self._end("rolled back")

    def forget(self, *, really: bool) -> LoadOutcome:
        """Return what the table would be left with if the journal were removed, or remove it; change nothing.

        Args:
            really: remove it.
        """
        rows = sum(piece.rows for piece in read_pieces(self.control, self._load_id))
        lines = [f"{format_many(rows, 'row')} of the load {'stays' if rows == 1 else 'stay'} in the table"]
        lines += _missing_lines(self._missing())
        outcome = self._outcome("forgotten", problems=lines)
        if really:
            self._write_rejects()
            self._remove_journal()
        return outcome

    def _write_rejects(self) -> None:
        write_rejects(self.document, read_rejects(self.control, self._load_id))

    def _missing(self) -> list[tuple[int, JournalObject]]:
        objects = read_objects(self.control, self._load_id)
        return [(number, entry) for number, entry, present in objects if not present]

    def _rebuild(
        self, *, keep_as_is: bool, rolling_back: bool = False
    ) -> tuple[list[CannotMake], LoadOutcome | None]:
        """Make again what was dropped; return what cannot be made, and the outcome if this run ends there."""
        catalog = read_catalog(self.control, self._table.oid)
        there = set() if catalog is None else objects_of(catalog)
        for number, entry in self._missing():
            if (entry.name, entry.definition) in there:
                adopt_object(self.control, self._table, number, entry, self._load_id)
        rebuild = Rebuild(self._running, rolling_back=rolling_back)
        whole, problems = rebuild.run(self._missing()), rebuild.problems
        self._steps += rebuild.steps
        if not whole:
            return problems, self._outcome("interrupted")
        still_unlogged = any(problem.entry_kind == UNLOGGED for problem in problems)
        if problems and (still_unlogged or not keep_as_is):
            return problems, self._outcome("incomplete", unchanged=False, problems=problems)
        return problems, None

    def _end(self, ended: str, *, partly: bool = False) -> LoadOutcome:
        facts = read_facts(self.control, self._table.oid)
        changes = differences(self._before, facts) if facts else []
        if facts and (missing := self._missing()):
            changes = _missing_lines(missing)
        words = ["not all rows of the files were copied; no later run copies the others"] if partly else []
        unchanged = not changes if facts else None
        outcome = self._outcome(ended, unchanged=unchanged, problems=words + changes)
        if ended != "rolled back":
            self._write_rejects()
        self._remove_journal()
        return outcome

    def _remove_journal(self) -> None:
        end_load(self.control, self._load_id)
        self._stays = False
        remove_local(self.document.journal)

    def _outcome(
        self, ended: str, *, unchanged: bool | None = None, problems: Sequence[PgsweepError | str] = ()
    ) -> LoadOutcome:
        document = self.document
        pieces = read_pieces(self.control, self._load_id)
        wal = wal_position(self.control)
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
            copied_rows=rows - self._rows_before,
            rejected=len(read_rejects(self.control, self._load_id)),
            copied_bytes=sum(piece.bytes for piece in pieces),
            seconds=round(time.monotonic() - self._begin, 3),
            wal_bytes=None if wal is None or self._wal is None else wal - self._wal,
            jobs=document.plan.jobs,
            resumed=self._resumed,
            unchanged=unchanged,
            steps=self._steps,
            problems=lines,
            rejects_file=document.rejects_file,
            journal=document.journal if ended in ("interrupted", "incomplete") else None,
            notes=self._notes + unmoved_sequences(document.columns, document.plan.columns, stays),
            headers=document.headers,
        )

    def _step(self, what: str, begin: float) -> None:
        self._steps.append(step_since(what, begin))


def _missing_lines(missing: Sequence[tuple[int, JournalObject]]) -> list[str]:
    return [f"missing: {entry.title}; to make it later: {'; '.join(entry.make)}" for _, entry in missing]
