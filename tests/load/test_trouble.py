"""What goes wrong while a load is under way: disks, locks, rights, and what others do to the table."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from pgsweep.errors import MissingAbility, PgsweepError, UsageError
from pgsweep.load import pieces
from pgsweep.load.document import LocalJournal, write_local
from pgsweep.load.loading import keep_as_is, load_files, plan_load, resume, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load import lock as load_lock
from pgsweep.pg.load.catalog import read_catalog
from pgsweep.pg.load.copy import open_session
from pgsweep.pg.private.cluster import Cluster
from pgsweep.plain import shell_word
from pgsweep.records.load import LoadOutcome
from tests.fix_cli import run
from tests.fix_disk import fill_disk
from tests.fix_load import (
    TROUBLE,
    At,
    ask,
    count_of,
    facts_of,
    leftovers,
    outcome_of,
    said,
    trouble_database,
    write_trouble,
)
from tests.fix_standby import PRIMARY, standby_of

DROP = LoadOptions(indexes="drop", piece_bytes=4096)
KEEP = LoadOptions(indexes="keep", jobs=2, piece_bytes=4096)
ROWS = 5000


@pytest.fixture
def conninfo(wheel18: Cluster) -> Iterator[str]:
    with trouble_database(wheel18) as found:
        yield found


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/pgsweep"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_trouble(tmp_path / "rows.csv", ROWS)


# Disks


@pytest.fixture
def server_disk(wheel18: Cluster) -> Iterator[Path]:
    """A file system of 4 MB that the server's user may use."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    with tempfile.TemporaryDirectory(prefix="pgs-disk-", dir="/tmp") as folder:
        owner = wheel18.data_directory.stat()
        Path(folder).chmod(0o755)
        place = Path(folder, "disk")
        place.mkdir()
        options = f"size=4m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "pgsweep-test", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        space = place / "space"
        space.mkdir()
        os.chown(space, owner.st_uid, owner.st_gid)
        ask(wheel18.conninfo(), f"CREATE TABLESPACE small LOCATION '{space}'")
        try:
            yield place
        finally:
            ask(wheel18.conninfo(), "DROP DATABASE IF EXISTS trouble WITH (FORCE)")
            ask(wheel18.conninfo(), "DROP TABLESPACE small")
            subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("what", ["table", "index"])
def test_a_full_disk_of_the_server(wheel18: Cluster, server_disk: Path, rows: Path, what: str) -> None:
    setup = (
        TROUBLE.replace("name text)", "name text) TABLESPACE small")
        if what == "table"
        else TROUBLE.replace(" WHERE id >= 0", " TABLESPACE small WHERE id >= 0")
    )
    with trouble_database(wheel18, setup) as conninfo:
        before = facts_of(conninfo, "t")
        full = At(lambda: fill_disk(server_disk), stage="copying")
        if what == "table":
            with pytest.raises(PgsweepError, match="the server has no room") as failed:
                load_files(conninfo, [str(rows)], "t", DROP, listener=full)
            assert "--resume" in said(failed.value)
        else:
            outcome = outcome_of(load_files(conninfo, [str(rows)], "t", DROP, listener=full))
            assert outcome.ended == "incomplete"
            assert "make room on the server" in " ".join(outcome.problems)
            # The others are made.
            assert "index public.t_pkey" in dict(facts_of(conninfo, "t"))
        assert full.done
        (server_disk / "ballast").unlink()
        assert outcome_of(resume(conninfo, "t")).unchanged
        assert (count_of(conninfo), facts_of(conninfo, "t")) == (ROWS, before)
        assert leftovers(conninfo) == []


def test_a_full_disk_of_the_client(conninfo: str, small_disk: Path, rows: Path, tmp_path: Path) -> None:
    before = facts_of(conninfo, "t")
    fill_disk(small_disk)
    with pytest.raises(PgsweepError, match=r"the journal .* cannot be written") as failed:
        load_files(conninfo, [str(rows)], "t", DROP, journal=small_disk / "journal.json")
    assert "nothing was changed" in said(failed.value)
    assert (count_of(conninfo), facts_of(conninfo, "t")) == (0, before)
    assert leftovers(conninfo) == []
    # The file of refused records is written at the end; until then the journal has them.
    rows.write_text("id,a,name\n1,1,x\nno,1,y\n")
    rejects = small_disk / "bad.csv"
    options = LoadOptions(indexes="drop", max_rejects=5)
    with pytest.raises(PgsweepError, match="cannot write"):
        load_files(conninfo, [str(rows)], "t", options, rejects=rejects)
    (small_disk / "ballast").unlink()
    assert outcome_of(resume(conninfo, "t")).rejected == 1
    assert '"no' in rejects.read_text() or "no,1,y" in rejects.read_text()
    assert (count_of(conninfo), facts_of(conninfo, "t")) == (1, before)
    assert leftovers(conninfo) == []


def test_a_journal_that_the_end_of_another_load_drops(
    conninfo: str, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dropped(path: Path, journal: LocalJournal) -> None:
        ask(conninfo, "DROP SCHEMA pgsweep_load CASCADE")
        write_local(path, journal)

    monkeypatch.setattr(pieces, "write_local", dropped)
    assert outcome_of(load_files(conninfo, [str(rows)], "t", DROP)).unchanged
    assert (count_of(conninfo), leftovers(conninfo)) == (ROWS, [])


# Locks


def test_a_step_of_the_load_itself_is_no_process_to_be_ended(conninfo: str) -> None:
    [(oid,)] = ask(conninfo, "SELECT 't'::regclass::oid::int8")
    with open_session(conninfo, oid) as here, open_session(conninfo, oid) as step, step.transaction():
        step.execute("LOCK TABLE public.t IN SHARE MODE")
        found = read_catalog(here, oid)
        assert found is not None
        table = found.table
        assert "another step of this load uses" in load_lock._holders(here, table)
        with psycopg.connect(conninfo) as other:
            other.execute("SELECT FROM t")
            holders = load_lock._holders(here, table)
            assert f"process {other.info.backend_pid} (idle in transaction) of" in holders


def test_a_lock_that_is_not_to_be_had(conninfo: str, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_lock, "_LOCK_TIMEOUT", b"SET LOCAL lock_timeout = '50ms'")
    monkeypatch.setattr(load_lock, "_LOCK_PAUSE_SECONDS", 0.05)
    before = facts_of(conninfo, "t")
    listener = At()
    with psycopg.connect(conninfo) as other:
        other.execute("SELECT FROM t")
        holder = f"{other.info.backend_pid} (idle in transaction)"
        for options in (DROP, LoadOptions(indexes="drop", single_transaction=True)):
            with pytest.raises(PgsweepError, match="cannot be locked") as failed:
                load_files(conninfo, [str(rows)], "t", options, listener=listener)
            assert holder in said(failed.value)
    assert [note for note in listener.notes if holder in note]
    assert (count_of(conninfo), facts_of(conninfo, "t")) == (0, before)
    assert leftovers(conninfo) == []
    # Not at the end either: the rows are there, and a later run makes the rest.
    with psycopg.connect(conninfo) as other:
        at = At(lambda: other.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE"), stage="making indexes")
        with pytest.raises(PgsweepError, match="cannot be locked"):
            load_files(conninfo, [str(rows)], "t", DROP, listener=at)
    assert outcome_of(resume(conninfo, "t")).unchanged
    assert (count_of(conninfo), facts_of(conninfo, "t")) == (ROWS, before)


def test_a_piece_that_ends_in_a_deadlock_is_copied_again(
    wheel18: Cluster, conninfo: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,a,name\n1,1,x\n2,2,y\n")
    # The other session finds no deadlock, so the load must.
    ask(conninfo, "ALTER DATABASE trouble SET deadlock_timeout = '2s'")
    with psycopg.connect(conninfo) as other, psycopg.connect(conninfo, autocommit=True) as watcher:
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("DELETE FROM parent WHERE id = 2")
        done: list[LoadOutcome] = []
        thread = threading.Thread(
            target=lambda: done.append(outcome_of(load_files(conninfo, [str(path)], "t", KEEP_ONE)))
        )
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while watcher.execute(waits).fetchone() == (0,):
            assert thread.is_alive()
        # The load's row with this id is not committed: this waits for the load, and the load for the parent.
        other.execute("INSERT INTO t VALUES (1, 1, 'theirs')")
        other.rollback()
        thread.join()
    assert [outcome.ended for outcome in done] == ["loaded"]
    assert ask(conninfo, "SELECT id, name FROM t ORDER BY id") == [(1, "x"), (2, "y")]
    ended = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'trouble'"
    with psycopg.connect(conninfo, autocommit=True) as watcher:
        watcher.execute("SELECT pg_stat_force_next_flush()")
    assert ask(conninfo, ended)[0][0] >= 1


KEEP_ONE = LoadOptions(indexes="keep", jobs=2, max_rejects=0)
"""With a journal, although the file is small."""


# What others do to the table


def test_a_table_that_is_dropped_meanwhile(conninfo: str, rows: Path, state: Path) -> None:
    at = At(lambda: ask(conninfo, "DROP TABLE t"))
    with pytest.raises(PgsweepError, match="dropped or renamed meanwhile"):
        load_files(conninfo, [str(rows)], "t", KEEP, listener=at)
    assert at.done
    assert len(list(state.glob("load-*.json"))) == 1
    with pytest.raises(PgsweepError, match="dropped or renamed meanwhile"):
        resume(conninfo, "t")
    undone = outcome_of(roll_back(conninfo, "t", listener=(listener := At())))
    assert (undone.ended, undone.unchanged, undone.problems) == ("rolled back", None, [])
    assert "the table no longer exists" in " ".join(listener.notes)
    assert leftovers(conninfo) == []
    assert list(state.glob("load-*.json")) == []


@pytest.mark.parametrize("table", ['"Ünï Load"', 'public."Ünï Load"', '"o""dd"', "ODD"])
def test_a_dropped_table_is_found_by_the_name_that_was_given(conninfo: str, rows: Path, table: str) -> None:
    ask(conninfo, f"ALTER TABLE t RENAME TO {table.removeprefix('public.')}")
    at = At(lambda: ask(conninfo, f"DROP TABLE {table}"))
    with pytest.raises(PgsweepError, match="dropped or renamed meanwhile") as failed:
        load_files(conninfo, [str(rows)], table, KEEP, listener=at)
    named = "public." + table.removeprefix("public.").replace("ODD", "odd")
    assert f"--rollback {shell_word(named)}" in said(failed.value)
    with pytest.raises(PgsweepError, match="dropped or renamed meanwhile"):
        resume(conninfo, table)
    with pytest.raises(UsageError) as failed:
        roll_back(conninfo, '"other"')
    assert failed.value.cause == 'relation "other" does not exist'
    assert outcome_of(roll_back(conninfo, table)).ended == "rolled back"
    assert leftovers(conninfo) == []


def test_a_name_that_tables_of_two_schemas_had_is_not_guessed(conninfo: str, rows: Path) -> None:
    for schema in ("one", "two"):
        ask(conninfo, f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.v (id int, a int, name text)")
        drop = At(lambda schema=schema: ask(conninfo, f"DROP TABLE {schema}.v"))  # type: ignore[misc]
        with pytest.raises(PgsweepError, match="dropped or renamed meanwhile"):
            load_files(conninfo, [str(rows)], f"{schema}.v", KEEP, listener=drop)
    with pytest.raises(UsageError, match="several tables") as failed:
        roll_back(conninfo, "v")
    assert failed.value.hint == "name one of them with its schema: one.v, two.v"
    # A table of that name in another schema hides neither, and is not touched.
    ask(conninfo, "CREATE TABLE v (id int)")
    before = facts_of(conninfo, "v")
    assert outcome_of(roll_back(conninfo, "two.v")).ended == "rolled back"
    assert outcome_of(roll_back(conninfo, "v")).ended == "rolled back"
    assert (facts_of(conninfo, "v"), leftovers(conninfo)) == (before, [])


def test_the_load_of_a_namesake_in_another_schema_is_not_undone(conninfo: str, rows: Path) -> None:
    ask(conninfo, "CREATE SCHEMA one; CREATE TABLE one.t (id int, a int, name text)")
    stop = threading.Event()
    load_files(conninfo, [str(rows)], "one.t", KEEP, listener=At(stop.set), stop=stop)
    with pytest.raises(UsageError, match="no load of `t` is unfinished"):
        roll_back(conninfo, "t")
    assert outcome_of(resume(conninfo, "one.t")).rows == ROWS


def test_another_table_under_the_same_name_gets_no_row(conninfo: str, rows: Path) -> None:
    swap = "ALTER TABLE t RENAME TO old; CREATE TABLE t (id int, a int, name text)"
    before = facts_of(conninfo, "t")
    for options in (KEEP, DROP):
        with pytest.raises(PgsweepError, match="dropped or renamed meanwhile"):
            load_files(conninfo, [str(rows)], "t", options, listener=At(lambda: ask(conninfo, swap)))
        assert count_of(conninfo) == 0
        assert [title for title, _ in facts_of(conninfo, "t") if title.startswith("index")] == []
        # The journal is found by the name that the table had.
        with pytest.raises(PgsweepError, match="dropped or renamed"):
            roll_back(conninfo, "t")
        ask(conninfo, "DROP TABLE t; ALTER TABLE old RENAME TO t")
        assert outcome_of(roll_back(conninfo, "t")).unchanged
        assert (count_of(conninfo), facts_of(conninfo, "t")) == (0, before)


def test_a_file_that_grows_undoes_the_load(conninfo: str, rows: Path) -> None:
    def grow() -> None:
        with rows.open("a") as file:
            file.write(f"{ROWS},1,more\n")

    before = facts_of(conninfo, "t")
    for options in (DROP, KEEP):
        with pytest.raises(PgsweepError, match="has changed since the load began") as failed:
            load_files(conninfo, [str(rows)], "t", options, listener=At(grow))
        assert "rolled back" in said(failed.value)
        assert (count_of(conninfo), facts_of(conninfo, "t")) == (0, before)
    # Between two runs likewise; the load can still be rolled back.
    stop = threading.Event()
    stopped = outcome_of(load_files(conninfo, [str(rows)], "t", DROP, listener=At(stop.set), stop=stop))
    assert stopped.ended == "interrupted"
    # The table has a part of the rows, so a plan of the next load would mislead.
    with pytest.raises(UsageError, match="has begun and not ended"):
        plan_load(conninfo, [str(rows)], "t", DROP)
    size = rows.stat().st_size
    grow()
    words = f"it had {size} bytes, and has {rows.stat().st_size}$"
    with pytest.raises(PgsweepError, match=words) as failed:
        resume(conninfo, "t")
    assert failed.value.hint == "undo the load: pgsweep load --rollback public.t; then load the file again"
    assert outcome_of(roll_back(conninfo, "t")).unchanged
    assert (count_of(conninfo), facts_of(conninfo, "t")) == (0, before)


def test_a_file_that_was_only_touched_can_be_given_its_time_again(conninfo: str, rows: Path) -> None:
    stop = threading.Event()
    load_files(conninfo, [str(rows)], "t", DROP, listener=At(stop.set), stop=stop)
    before = rows.stat()
    rows.touch()
    with pytest.raises(PgsweepError, match=r"it was last written at .*Z, before at .*Z$") as failed:
        resume(conninfo, "t")
    assert "load --rollback public.t" in said(failed.value)
    found = re.search(r"(touch -d [^;]*);", said(failed.value))
    assert found is not None
    subprocess.run(["sh", "-c", found[1]], check=True)
    assert rows.stat().st_mtime_ns == before.st_mtime_ns
    # A copy of the same content and time is another file still.
    copy = rows.with_suffix(".copy")
    shutil.copy2(rows, copy)
    kept = rows.rename(rows.with_suffix(".kept"))
    copy.rename(rows)
    with pytest.raises(PgsweepError, match=r"it is another file \(inode \d+, before \d+\)$") as failed:
        resume(conninfo, "t")
    assert "touch" not in said(failed.value)
    kept.rename(rows)
    assert outcome_of(resume(conninfo, "t")).rows == ROWS


def test_a_load_of_a_changed_file_that_is_kept_is_to_be_undone(conninfo: str, rows: Path) -> None:
    given = msgspec.structs.replace(DROP, keep_on_failure=True)
    with pytest.raises(PgsweepError, match="it was last written at") as failed:
        load_files(conninfo, [str(rows)], "t", given, listener=At(rows.touch))
    assert (
        failed.value.hint
        == "undo what was copied: pgsweep load --rollback public.t; then load the file again"
    )
    assert outcome_of(roll_back(conninfo, "t")).ended == "rolled back"


@pytest.mark.parametrize("record", ["5000,1", "5000,1,x,y"])
def test_a_record_with_another_number_of_fields_undoes_the_load(
    conninfo: str, rows: Path, record: str
) -> None:
    with rows.open("a") as file:
        file.write(f"{record}\n")
    before = facts_of(conninfo, "t")
    with pytest.raises(PgsweepError, match=rf"rows.csv, line {ROWS + 2}\b.*(missing data|extra data)"):
        load_files(conninfo, [str(rows)], "t", DROP)
    assert (count_of(conninfo), facts_of(conninfo, "t")) == (0, before)


# Rights


def test_a_role_that_may_not_create(wheel18: Cluster, conninfo: str, rows: Path) -> None:
    ask(
        conninfo,
        "CREATE ROLE limited LOGIN; ALTER TABLE t OWNER TO limited; "
        "GRANT SELECT, REFERENCES ON parent TO limited; "
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO limited",
    )
    theirs = f"{conninfo} user=limited"
    try:
        before = facts_of(conninfo, "t")
        plan = plan_load(theirs, [str(rows)], "t", LoadOptions(indexes="drop")).plan
        actions = {entry.name: (entry.action, entry.reason) for entry in plan.objects}
        # It could drop its index, and not make it again.
        assert actions["t_pkey"] == ("keep", "this role may not make it again in its schema")
        with pytest.raises(MissingAbility, match="the journal of the load cannot be made") as failed:
            load_files(theirs, [str(rows)], "t", DROP)
        assert "--single-transaction" in said(failed.value)
        assert (count_of(conninfo), facts_of(conninfo, "t")) == (0, before)
        outcome = outcome_of(load_files(theirs, [str(rows)], "t", LoadOptions()))
        assert (outcome.ended, outcome.rows, outcome.unchanged) == ("loaded", ROWS, True)
    finally:
        ask(conninfo, "DROP OWNED BY limited CASCADE; DROP ROLE limited")


def test_a_standby_is_refused(rows: Path) -> None:
    with Cluster.create(settings=PRIMARY) as primary:
        ask(primary.conninfo(), TROUBLE)
        with standby_of(primary) as standby:
            with pytest.raises(MissingAbility, match="the server is a standby"):
                plan_load(standby.conninfo(), [str(rows)], "t", LoadOptions())
            with pytest.raises(MissingAbility, match="the server is a standby"):
                load_files(standby.conninfo(), [str(rows)], "t", DROP)
            with pytest.raises(UsageError, match="cannot be made UNLOGGED") as failed:
                load_files(primary.conninfo(), [str(rows)], "t", LoadOptions(unlogged=True))
            assert "the server has standbys or replication slots" in said(failed.value)


# What the rows do not allow


def test_a_missing_key_is_found_when_it_is_validated(conninfo: str, rows: Path) -> None:
    with rows.open("a") as file:
        file.write(f"{ROWS},77,x\n")
    before = facts_of(conninfo, "t")
    outcome = outcome_of(load_files(conninfo, [str(rows)], "t", DROP))
    words = " ".join(outcome.problems)
    assert outcome.ended == "incomplete"
    assert "foreign key `t_a` cannot be validated" in words
    query = words.split("see the rows: ")[1].split("; ")[0]
    assert ask(conninfo, query) == [(ROWS, 77, "x")]
    # It holds for new rows already.
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        ask(conninfo, "INSERT INTO t VALUES (-1, 77, 'z')")
    ask(conninfo, "INSERT INTO parent VALUES (77)")
    assert outcome_of(resume(conninfo, "t")).unchanged
    assert facts_of(conninfo, "t") == before
    assert leftovers(conninfo) == []


def test_duplicates_found_at_the_end_can_be_shown_and_kept(conninfo: str, rows: Path, state: Path) -> None:
    with rows.open("a") as file:
        file.write(f"-1,1,NAME 7\n{ROWS},1,NAME 7\n{ROWS + 1},1,NAME 8\n")
    outcome = outcome_of(load_files(conninfo, [str(rows)], "t", DROP))
    words = " ".join(outcome.problems)
    assert outcome.ended == "incomplete"
    query = words.split("see the duplicates: ")[1].split("; ")[0]
    # The order of the index is not part of it, its condition is.
    assert sorted(ask(conninfo, query)) == [("name 7", 2), ("name 8", 2)]
    assert "--keep-as-is" in words
    kept = outcome_of(keep_as_is(conninfo, "t"))
    assert (kept.ended, kept.rows, kept.unchanged) == ("kept as it is", ROWS + 3, False)
    [missing] = kept.problems
    assert "index t_name" in missing
    assert "CREATE UNIQUE INDEX t_name ON public.t" in missing
    names = {title for title, _ in facts_of(conninfo, "t")}
    assert "index public.t_pkey" in names
    assert "index public.t_name" not in names
    assert leftovers(conninfo) == []
    assert list(state.glob("load-*.json")) == []
    with pytest.raises(UsageError, match="no load of `t` is unfinished"):
        keep_as_is(conninfo, "t")


# Local journals that were left


def test_a_local_journal_of_a_load_that_has_ended_is_removed_or_explained(
    conninfo: str, rows: Path, state: Path
) -> None:
    import msgspec

    copies: list[bytes] = []
    before = facts_of(conninfo, "t")

    def copy() -> None:
        [path] = state.glob("load-*.json")
        copies.append(path.read_bytes())

    load_files(conninfo, [str(rows)], "t", DROP, listener=At(copy))
    assert list(state.glob("load-*.json")) == []
    journal = msgspec.json.decode(copies[0], type=LocalJournal)
    assert any("CREATE UNIQUE INDEX t_name" in statement for statement in journal.restore)
    left = state / f"load-{journal.load_id}.json"
    # As a run leaves it that is killed after its last commit.
    left.write_bytes(copies[0])
    ask(conninfo, "TRUNCATE t")
    listener = At()
    load_files(conninfo, [str(rows)], "t", DROP, listener=listener)
    assert not left.exists()
    assert [note for note in listener.notes if "that has ended" in note]
    # As it stays where the journal in the database is dropped: it is the only record.
    left.write_bytes(copies[0])
    ask(conninfo, "TRUNCATE t; DROP INDEX t_name")
    listener = At()
    load_files(conninfo, [str(rows)], "t", DROP, listener=listener)
    assert left.exists()
    [explained] = [note for note in listener.notes if "has changed" in note]
    assert "t_name" in explained
    with pytest.raises(UsageError) as failed:
        resume(conninfo, "t")
    assert "CREATE UNIQUE INDEX t_name" in said(failed.value)
    ask(conninfo, "; ".join(s for s in journal.restore if "t_name" in s))
    assert facts_of(conninfo, "t") == before
    # One of another database, or of another server, is left alone.
    left.write_bytes(msgspec.json.encode(msgspec.structs.replace(journal, database="other")))
    ask(conninfo, "DROP TABLE t; CREATE TABLE t (id int, a int, name text)")
    load_files(conninfo, [str(rows)], "t", DROP, listener=At())
    assert left.exists()
    left.write_bytes(copies[0])
    ask(conninfo, "ALTER TABLE t RENAME TO u")
    load_files(conninfo, [str(rows)], "u", DROP, listener=(listener := At()))
    assert not left.exists()
    assert [note for note in listener.notes if "a table that was dropped" in note]


def test_a_pipe_is_read_once(conninfo: str, rows: Path, tmp_path: Path) -> None:
    """The plan looks at the first bytes, and the load must have them too."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=pipe.write_bytes, args=(rows.read_bytes(),), daemon=True)
    feeder.start()
    try:
        done = run("load", str(pipe), "t", "-d", conninfo, "--yes", "--indexes", "drop")
    finally:
        # Whatever happened, the feeder must not wait for a reader for ever.
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    feeder.join()
    assert done.returncode == 0, done.stderr
    assert count_of(conninfo) == ROWS
