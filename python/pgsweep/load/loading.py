"""A load in pieces with a journal: begun, resumed, rolled back.

    planned ──► copying ──► rebuilding ──► (gone: loaded)
                   └────────────┴──► rolling back ──► (gone: as before)

Each arrow is one transaction of the database; pg/load/journal.py lists what each contains. A run that ends
early leaves one of these phases, and a later run continues from there: `resume` to the right, `roll_back`
down. The phase `rolling back` begins with the transaction that removes the rows: where they cannot be
removed, the load is where it was, and `resume` or `keep_as_is` ends it. A record that the server refuses, or
a file that cannot be read, rolls the load back at once. What is found when an index or a constraint is made
again (a duplicate, a missing key) leaves the phase `rebuilding`, because only the user can say whether to
correct the rows or to undo the load.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from pgsweep.errors import ConnectionFailed, LoadUnfinished, PgsweepError, UsageError
from pgsweep.load.agreed import Agreed, prepare
from pgsweep.load.copying import LoadListener, NullLoadListener, Running
from pgsweep.load.document import LoadDocument, journal_place, parse_document
from pgsweep.load.input.source import Input, check_outputs, check_unchanged, find_inputs
from pgsweep.load.leftover import local_journals, remove_leftovers
from pgsweep.load.options import LoadOptions
from pgsweep.load.partition import NewPartition, partition_options, partition_plan, plan_partition
from pgsweep.load.pieces import PieceRun
from pgsweep.load.single import load_in_one
from pgsweep.load.table import check_primary
from pgsweep.pg.load.catalog import Catalog, changed_since_plan, read_catalog
from pgsweep.pg.load.code import read_code
from pgsweep.pg.load.copy import open_session
from pgsweep.pg.load.journal import (
    LoadId,
    Unfinished,
    at_work,
    begun_by_others,
    claim,
    drop_empty_journal,
    find_unfinished,
    holder_of,
    make_journal,
    read_unfinished,
)
from pgsweep.pg.load.lock import dropped
from pgsweep.pg.load.ways import Ways
from pgsweep.pg.load.work import current_xid, failure_of, own_rows_are_distinct
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.failures import DriverError
from pgsweep.pg.session.userpath import parts_of_name, resolve_relation
from pgsweep.plain import shell_word
from pgsweep.records.load import LoadOutcome, LoadPlan, LoadResult


def agree(
    conninfo: str, inputs: list[Input], table: str, options: LoadOptions, *, waits: bool = True
) -> Agreed:
    """Plan a load; nothing is changed.

    Args:
        waits: for a load of the table that is at work.

    Raises:
        PgsweepError: the files or the table cannot be loaded like this.
    """
    with _explained(), connect(conninfo) as connection:
        partition: NewPartition | None = None
        catalog: Catalog | None
        if options.partition_of or options.for_values:
            partition = plan_partition(connection, table, options)
            options, catalog = partition_options(options), partition.catalog
            code = read_code(connection, partition.parent.table, options.search_path)
        else:
            oid = resolve_relation(connection, table)
            if not waits and (holder := holder_of(connection, oid)):
                raise at_work(holder)
            _refuse_unfinished(connection, oid, table)
            catalog = read_catalog(connection, oid)
            if catalog is None:
                raise dropped(None)
            check_primary(catalog.table)
            code = read_code(connection, catalog.table, options.search_path)
        document, objects = prepare(catalog, inputs, options, connection, code)
        if partition is not None:
            plan = partition_plan(document.plan, partition)
            document, objects = msgspec.structs.replace(document, plan=plan), []
        result = _result(connection, document.plan)
        return Agreed(table, catalog, code, document, objects, partition, result)


def plan_load(conninfo: str, files: Sequence[str], table: str, options: LoadOptions) -> LoadResult:
    """Return what a load would do; nothing is changed.

    Raises:
        PgsweepError: the files or the table cannot be loaded like this.
    """
    return agree(conninfo, find_inputs(files, options), table, options, waits=False).result


def load_files(
    conninfo: str,
    files: Sequence[str],
    table: str,
    options: LoadOptions,
    *,
    listener: LoadListener | None = None,
    stop: threading.Event | None = None,
    journal: Path | None = None,
    rejects: Path | None = None,
) -> LoadResult:
    """Plan a load and carry it out: see `carry_out`."""
    agreed = agree(conninfo, find_inputs(files, options), table, options)
    return carry_out(conninfo, agreed, listener=listener, stop=stop, journal=journal, rejects=rejects)


def carry_out(
    conninfo: str,
    agreed: Agreed,
    *,
    listener: LoadListener | None = None,
    stop: threading.Event | None = None,
    journal: Path | None = None,
    rejects: Path | None = None,
) -> LoadResult:
    """Load files into a table as was agreed, and return the plan and what was done.

    Args:
        journal: the local file; in the state folder by default.
        rejects: the file for records that the server refuses; needs `max_rejects`.

    Raises:
        PgsweepError: nothing of the load is in the table then, unless the message says otherwise.
    """
    listener, stop = listener or NullLoadListener(), stop or threading.Event()
    catalog, document, objects = agreed.catalog, agreed.document, agreed.objects
    check_outputs([rejects, journal], document.inputs)
    if rejects is not None:
        document = msgspec.structs.replace(document, rejects_file=str(rejects.absolute()))
    with _explained(), open_session(conninfo) as control:
        remove_leftovers(conninfo, control, listener.note)
        _check_code(control, agreed)
        if document.plan.strategy == "one transaction":
            outcome = load_in_one(
                conninfo, control, replace(agreed, document=document), listener=listener, stop=stop
            )
            return _result(control, document.plan, outcome)
        oid = catalog.table.oid
        schema = make_journal(control)
        try:
            claim(control, oid)
            _refuse_unfinished(control, oid, agreed.table)
            load_id = LoadId(schema, str(uuid.uuid4()))
            place = journal_place(journal, load_id.id)
            if isinstance(place, str):
                listener.note(f"no local journal is written: {place}; name a file: --journal FILE")
            document = msgspec.structs.replace(
                document,
                first_xid=_first_xid(control, catalog),
                journal=None if isinstance(place, str) else str(place),
            )
            run = PieceRun(Running(conninfo, control, load_id, document, listener, stop), catalog.facts)
            with run.said():
                run.begin(objects)
        except BaseException as error:
            # Nothing of the load is in the journal, unless the connection was lost.
            try:
                drop_empty_journal(control)
            except (DriverError, PgsweepError):
                raise _said(error, Ways(agreed.table)) from error
            raise
        with run.said():
            outcome = run.go_on()
        return _result(control, run.document.plan, outcome)


def _check_code(control: Connection, agreed: Agreed) -> None:
    """Refuse to run other code of the table than was shown. The table itself is compared under its lock.

    Raises:
        PgsweepError: another session has changed it.
    """
    table = agreed.catalog.table if agreed.partition is None else agreed.partition.parent.table
    if read_code(control, table, agreed.document.options.search_path) != agreed.code:
        raise changed_since_plan()


def resume(
    conninfo: str,
    table: str,
    *,
    search_path: Sequence[str] | None = None,
    listener: LoadListener | None = None,
    stop: threading.Event | None = None,
) -> LoadResult:
    """Finish a load that was cut short: copy what is not in the journal, make all objects again.

    Args:
        search_path: of the table's code, instead of the one that the load began with.

    Raises:
        UsageError: there is no such load.
        PgsweepError: it cannot go on; what is done stays, and so does the journal.
    """
    with _continued(conninfo, table, listener, stop, search_path=search_path, copying=True) as (run, found):
        phase = run.real_phase(found.phase)
        ways, inputs = run.document.table.ways, run.document.inputs
        if phase == "rolling back":
            raise UsageError(
                "this load is being rolled back, and its rows are gone", hint=f"finish that: {ways.rollback}"
            )
        for entry in inputs if phase != "rebuilding" else []:
            check_unchanged(entry, begun=ways)
        return _result(run.control, run.document.plan, run.go_on(phase))


def keep_as_is(
    conninfo: str,
    table: str,
    *,
    partly: bool = False,
    listener: LoadListener | None = None,
    stop: threading.Event | None = None,
) -> LoadResult:
    """End a load with the rows that are in the table, without the objects that the rows do not allow.

    Args:
        partly: also where not all rows of the files were copied.

    Raises:
        UsageError: there is no such load, or rows were not copied.
        PgsweepError: the server refuses it.
    """
    with _continued(conninfo, table, listener, stop) as (run, found):
        phase, ways = run.real_phase(found.phase), run.document.table.ways
        if phase in ("planned", "copying") and not partly:
            raise UsageError(
                f"not all rows of this load were copied into `{table}`",
                hint=f"{ways.either}; or end it without the rows that were not copied: {ways.keep_as_is}",
            )
        if phase == "rolling back":
            outcome = run.roll_back(keep_as_is=True)
        else:
            outcome = run.finish(keep_as_is=True, partly=phase != "rebuilding")
        return _result(run.control, run.document.plan, outcome)


def roll_back(
    conninfo: str, table: str, *, listener: LoadListener | None = None, stop: threading.Event | None = None
) -> LoadResult:
    """Undo a load that was cut short: its rows go, everything dropped is made again.

    Raises:
        UsageError: there is no such load.
        PgsweepError: it cannot be undone; what is done stays, and so does the journal.
    """
    with _continued(conninfo, table, listener, stop, gone_is_fine=True, rolling_back=True) as (run, found):
        if read_catalog(run.control, run.document.table.oid) is not None:
            run.real_phase(found.phase)
        return _result(run.control, run.document.plan, run.roll_back())


def forget(conninfo: str, table: str, *, really: bool, listener: LoadListener | None = None) -> LoadResult:
    """Return what the table would be left with if the journal of its load were removed, or remove it.

    Args:
        really: remove it. Nothing else is changed.

    Raises:
        UsageError: there is no such load.
    """
    with _continued(conninfo, table, listener, None, gone_is_fine=True) as (run, _):
        return _result(run.control, run.document.plan, run.forget(really=really))


@contextmanager
def _continued(
    conninfo: str,
    table: str,
    listener: LoadListener | None,
    stop: threading.Event | None,
    *,
    search_path: Sequence[str] | None = None,
    copying: bool = False,
    gone_is_fine: bool = False,
    rolling_back: bool = False,
) -> Iterator[tuple[PieceRun, Unfinished]]:
    """Claim the unfinished load of a table for a run that continues it; errors say how the load is ended.

    Args:
        search_path: of the table's code, instead of the one that the load began with.
        copying: rows are copied, so the code of the table must be safe to run.
        gone_is_fine: the table may have been dropped.
        rolling_back: the load can only be undone.
    """
    listener = listener or NullLoadListener()
    with _explained(Ways(table)), open_session(conninfo) as control:
        remove_leftovers(conninfo, control, listener.note)
        found, document = _found(control, table, gone_is_fine=gone_is_fine)
        named = search_path or document.options.search_path
        code = read_code(control, document.table, named, copying=copying)
        document = msgspec.structs.replace(document, path=code.path)
        running = Running(conninfo, control, found.load_id, document, listener, stop or threading.Event())
        run = PieceRun(running, found.before, resumed=True)
        with run.said(rolling_back=rolling_back):
            yield run, found


def _first_xid(control: Connection, catalog: Catalog) -> int:
    """Return the transaction number from which the load counts; no old row has a later one."""
    xid = current_xid(control)
    if not own_rows_are_distinct(control, catalog.table, xid):
        raise UsageError(
            "old rows of the table have transaction numbers that this load would use again",
            cause="the server's numbers have wrapped, so a load's rows could not be recognized",
            hint="load in one transaction: --single-transaction; or VACUUM FULL the table first",
        )
    return xid


def _refuse_unfinished(connection: Connection, oid: int, table: str) -> None:
    """Refuse a table of which a load has not ended; one that is at work may end meanwhile.

    Raises:
        PgsweepError: a load was cut short, is at work, or is another role's.
    """
    if find_unfinished(connection, oid) is not None:
        claim(connection, oid)
    if find_unfinished(connection, oid) is not None:
        raise LoadUnfinished(
            f"a load of `{table}` has begun and not ended",
            cause="it was cut short; the table may lack indexes, and has a part of the rows",
            hint=Ways(table).either,
        )
    for owner in begun_by_others(connection, oid):
        raise LoadUnfinished(
            f"a load of `{table}` by role {owner} has begun and not ended",
            cause="it is under way or was cut short; the table may lack indexes, and has a part of the rows",
            hint=_as_owner(table, owner),
        )


def _as_owner(table: str, owner: str) -> str:
    ways = Ways(table, owner)
    return f"only that role can end it; if it is not at work: {ways.resume}; or undo it: {ways.rollback}"


def _found(control: Connection, table: str, *, gone_is_fine: bool = False) -> tuple[Unfinished, LoadDocument]:
    """Return the unfinished load of a table, claimed."""
    try:
        oid = resolve_relation(control, table)
    except UsageError:
        lost = _oid_of_lost(control, table, None)
        if lost is None:
            raise
        if not gone_is_fine:
            # It may also be in a schema that is not in the search_path.
            there = read_catalog(control, lost)
            if there is None or there.table.name not in (table, *parts_of_name(control, table)[-1:]):
                raise dropped(Ways(table)) from None
        oid = lost
    found = _claimed(control, oid)
    if found is None and gone_is_fine:
        # Another table may have taken the name of one that was dropped or renamed.
        lost = _oid_of_lost(control, table, read_catalog(control, oid))
        found = None if lost is None else _claimed(control, lost)
        oid = oid if found is None or lost is None else lost
    if found is None:
        # A run that was killed before its load was in the journal has left that.
        drop_empty_journal(control)
        for owner in begun_by_others(control, oid):
            raise UsageError(
                f"no load of `{table}` by role {control.info.user} is unfinished",
                cause=f"role {owner} has begun one; its journal is executed, so no other role reads it",
                hint=_as_owner(table, owner),
            )
        catalog = read_catalog(control, oid)
        name = None if catalog is None else catalog.table.quoted
        database = control.info.dbname
        local = next(
            (file for _, file in local_journals() if (file.table, file.database) == (name, database)), None
        )
        raise UsageError(
            f"no load of `{table}` is unfinished",
            cause=f"database `{database}` has no journal of one: none was begun there, or it has ended"
            if local is None
            else "the database has no journal of it any more; it has ended, or the journal was dropped",
            hint="if something is missing, these statements make it again: " + "; ".join(local.restore)
            if local is not None and local.restore
            else "if the load is in another database, name it: -d NAME",
        )
    catalog = read_catalog(control, oid)
    if catalog is None and not gone_is_fine:
        raise dropped(Ways(table))
    document = parse_document(found.document)
    columns = document.columns if catalog is None else catalog.columns
    return found, msgspec.structs.replace(document, columns=columns)


def _claimed(control: Connection, oid: int) -> Unfinished | None:
    claim(control, oid)
    return find_unfinished(control, oid)


def _oid_of_lost(control: Connection, table: str, namesake: Catalog | None) -> int | None:
    """Return the oid of a table that was dropped while it was loaded, by the name that the journal has.

    Args:
        table: with or without its schema.
        namesake: the table that the name means now, if there is one. It may be in another schema; then the
            load of a table that still exists is not meant.

    Raises:
        UsageError: tables of several schemas have that name.
    """
    parts = parts_of_name(control, table)
    found: dict[str, int] = {}
    for _, oid, _, text in read_unfinished(control):
        facts = parse_document(text).table
        names = (facts.quoted, facts.name, f"{facts.schema}.{facts.name}")
        if table not in names and parts not in ([facts.name], [facts.schema, facts.name]):
            continue
        same = namesake is None or namesake.table.quoted == facts.quoted
        if same or read_catalog(control, oid) is None:
            found.setdefault(facts.quoted, oid)
    if len(found) > 1:
        raise UsageError(
            f"loads of several tables with the name `{table}` are unfinished",
            hint=f"name one of them with its schema: {', '.join(map(shell_word, sorted(found)))}",
        )
    return next(iter(found.values()), None)


def _result(connection: Connection, plan: LoadPlan, outcome: LoadOutcome | None = None) -> LoadResult:
    return LoadResult(
        server_version=connection.info.parameter_status("server_version") or "",
        database=connection.info.dbname,
        plan=plan,
        outcome=outcome,
    )


@contextmanager
def _explained(begun: Ways | None = None) -> Iterator[None]:
    """Turn what a statement raises inside into errors with cause and hint.

    Args:
        begun: of a load that has begun, and stays where the connection is lost.
    """
    try:
        yield
    except DriverError as error:
        raise _said(error, begun) from error
    except ConnectionFailed as error:
        raise _said(error, begun) from error.__cause__


def _said(error: BaseException, begun: Ways | None) -> BaseException:
    """Return an error with the commands that end a load that stays."""
    ours = failure_of(error) if isinstance(error, DriverError) else error
    if begun is not None and isinstance(ours, PgsweepError) and not begun.are_in(ours.hint):
        ours.hint = f"{f'{ours.hint}; ' if ours.hint else ''}{begun.either}"
    return ours
