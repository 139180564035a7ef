"""Loads by different roles in one database: each has a journal of its own, and trusts no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgsweep.errors import MissingAbility, PgsweepError, UsageError
from pgsweep.load.loading import load_files, plan_load, resume, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load.work import failure_of
from pgsweep.pg.private.cluster import Cluster
from tests.fix_load import (
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

DROP = LoadOptions(indexes="drop", piece_bytes=4096)
ALONE = LoadOptions(indexes="drop", single_transaction=True)
ROWS = 5000
ROLES = """
CREATE ROLE mon LOGIN; CREATE ROLE mallory LOGIN;
GRANT CREATE ON DATABASE trouble TO mon, mallory; GRANT SELECT, REFERENCES ON parent TO mon;
CREATE SCHEMA own AUTHORIZATION mon; SET ROLE mon;
CREATE TABLE own.t (id int PRIMARY KEY, a int, name text)
"""


@pytest.fixture
def conninfo(wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with trouble_database(wheel18) as found:
        ask(found, ROLES)
        try:
            yield found
        finally:
            ask(found, "DROP OWNED BY mon, mallory CASCADE; DROP ROLE mon, mallory")


@pytest.fixture
def mon(conninfo: str) -> str:
    return f"{conninfo} user=mon"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_trouble(tmp_path / "rows.csv", ROWS)


def interrupted(conninfo: str, rows: Path, table: str) -> None:
    """Load, and stop after the first rows."""
    stop = threading.Event()
    found = load_files(conninfo, [str(rows)], table, DROP, listener=At(stop.set), stop=stop)
    assert outcome_of(found).ended == "interrupted"


def schemas(conninfo: str) -> set[str]:
    return {name.partition(".")[0] for name in leftovers(conninfo)}


def test_a_load_of_one_role_leaves_others_alone(conninfo: str, mon: str, rows: Path) -> None:
    before = facts_of(conninfo, "t"), facts_of(conninfo, "own.t")
    mine = f"pgsweep_load_{ask(conninfo, 'SELECT oid FROM pg_roles WHERE rolname = $$mon$$')[0][0]}"
    interrupted(conninfo, rows, "t")
    plan_load(mon, [str(rows)], "own.t", DROP)
    for later in (resume, roll_back):
        with pytest.raises(UsageError, match=r"no load of `own\.t` is unfinished"):
            later(mon, "own.t")
    assert outcome_of(load_files(mon, [str(rows)], "own.t", DROP)).unchanged
    ask(conninfo, "TRUNCATE own.t")
    interrupted(mon, rows, "own.t")
    assert schemas(conninfo) == {"pgsweep_load", mine}
    assert outcome_of(roll_back(mon, "own.t")).unchanged
    interrupted(mon, rows, "own.t")
    assert outcome_of(resume(conninfo, "t")).unchanged
    assert schemas(conninfo) == {mine}
    assert outcome_of(resume(mon, "own.t")).unchanged
    assert ask(conninfo, "SELECT count(*) FROM own.t") == [(ROWS,)]
    assert (count_of(conninfo), leftovers(conninfo)) == (ROWS, [])
    assert (facts_of(conninfo, "t"), facts_of(conninfo, "own.t")) == before


def test_a_table_that_another_role_loads(conninfo: str, mon: str, rows: Path, tmp_path: Path) -> None:
    before = facts_of(conninfo, "own.t")
    for first, second, owner in ((conninfo, mon, "postgres"), (mon, conninfo, "mon")):
        interrupted(first, rows, "own.t")
        for options in (DROP, ALONE):
            for work in (plan_load, load_files):
                with pytest.raises(UsageError, match=f"`own.t` by role {owner} has begun") as failed:
                    work(second, [str(rows)], "own.t", options)
                assert f"pgsweep load -U {owner} --resume own.t" in said(failed.value)
        for later in (resume, roll_back):
            with pytest.raises(UsageError, match=r"no load of `own\.t` by role") as failed:
                later(second, "own.t")
            assert f"pgsweep load -U {owner} --rollback own.t" in said(failed.value)
        # Its local file is not taken for one that was left.
        assert len(list((tmp_path / "state/pgsweep").glob("load-*.json"))) == 1
        assert outcome_of(roll_back(first, "own.t")).unchanged
        assert (facts_of(conninfo, "own.t"), leftovers(conninfo)) == (before, [])


@pytest.mark.parametrize("then", ["resume", "rollback"])
def test_a_journal_of_an_earlier_version_is_found(conninfo: str, mon: str, rows: Path, then: str) -> None:
    before = facts_of(conninfo, "own.t")
    interrupted(mon, rows, "own.t")
    [schema] = schemas(conninfo)
    [mark] = [name for name in leftovers(conninfo) if ".of_" in name]
    ask(conninfo, f"DROP TABLE {mark}; ALTER SCHEMA {schema} RENAME TO pgsweep_load")
    with pytest.raises(UsageError, match="has begun and not ended"):
        plan_load(mon, [str(rows)], "own.t", DROP)
    # Meanwhile it is no obstacle to a superuser.
    assert outcome_of(load_files(conninfo, [str(rows)], "t", DROP)).unchanged
    assert outcome_of((resume if then == "resume" else roll_back)(mon, "own.t")).unchanged
    assert (facts_of(conninfo, "own.t"), leftovers(conninfo)) == (before, [])


def test_a_journal_that_another_role_has_made_as_a_trap(conninfo: str, mon: str, rows: Path) -> None:
    """Copied from a true one, with a statement of its own."""
    interrupted(conninfo, rows, "t")
    mine = f"pgsweep_load_{ask(conninfo, 'SELECT oid FROM pg_roles WHERE rolname = $$mon$$')[0][0]}"
    table = ask(conninfo, "SELECT 'own.t'::regclass::oid")[0][0]
    trap = "; ".join(
        [f"CREATE SCHEMA {mine} AUTHORIZATION mallory"]
        + [
            f"CREATE TABLE {mine}.{name} AS TABLE pgsweep_load.{name};"
            f"ALTER TABLE {mine}.{name} OWNER TO mallory"
            for name in ("load", "object", "piece", "reject", "alive")
        ]
        + [
            f"UPDATE {mine}.load SET table_oid = 'own.t'::regclass",
            f"UPDATE {mine}.object SET document = replace(document, 'CREATE', 'DROP TABLE parent; CREATE')",
            f"SET ROLE mallory; CREATE TABLE {mine}.of_{table} ()",
        ]
    )
    ask(conninfo, trap)
    for session in (mon, conninfo):
        with pytest.raises(UsageError, match=r"no load of `own\.t` is unfinished"):
            resume(session, "own.t")
    with pytest.raises(MissingAbility, match=f"schema {mine} .* is another role's") as failed:
        load_files(mon, [str(rows)], "own.t", DROP)
    assert "role mallory owns the schema" in said(failed.value)
    # What needs no journal goes on, and so do others.
    assert outcome_of(load_files(mon, [str(rows)], "own.t", ALONE)).unchanged
    assert outcome_of(roll_back(conninfo, "t")).unchanged
    ask(conninfo, f"ALTER SCHEMA {mine} RENAME TO pgsweep_load")
    few = rows.with_name("few.csv")
    few.write_text("".join(rows.read_text().splitlines(keepends=True)[:50]))
    assert outcome_of(load_files(mon, [str(few)], "own.t", LoadOptions(max_rejects=50))).ended
    assert outcome_of(load_files(conninfo, [str(rows)], "t", DROP)).unchanged
    assert schemas(conninfo) == {"pgsweep_load"}
    assert ask(conninfo, "SELECT count(*) FROM parent") == [(10,)]


def test_a_missing_privilege_has_no_hint_about_monitoring() -> None:
    found: PgsweepError = failure_of(psycopg.errors.InsufficientPrivilege("permission denied for schema x"))
    assert isinstance(found, MissingAbility)
    assert "permission denied for schema x" in said(found)
    assert "pg_monitor" not in said(found)
    assert "doctor" not in said(found)
