"""Code of triggers, checks, defaults, indexes and types: whose it is, and under which path it runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pgsweep.errors import MissingAbility, UsageError
from pgsweep.load.loading import keep_as_is, load_files, plan_load, resume, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run
from tests.fix_cluster import own_database
from tests.fix_load import At, ask, facts_of, leftovers, outcome_of, said, write_head

ROWS = 4000
DROP = LoadOptions(indexes="drop", piece_bytes=8192)
CODE = """
CREATE SCHEMA app;
CREATE FUNCTION app.norm(t varchar) RETURNS varchar LANGUAGE plpgsql IMMUTABLE
  AS 'BEGIN RETURN lower(t); END';
CREATE FUNCTION app.size(t varchar) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT length(t)';
CREATE FUNCTION app.mark() RETURNS varchar LANGUAGE plpgsql AS $$ BEGIN RETURN upper('x'::varchar); END $$;
CREATE FUNCTION app.shout() RETURNS trigger LANGUAGE plpgsql
  AS 'BEGIN NEW.mark := upper(NEW.note); RETURN NEW; END';
CREATE DOMAIN app.word AS varchar CHECK (app.norm(VALUE) <> '!');
CREATE TABLE app.t (id int PRIMARY KEY, note varchar CHECK (app.norm(note) <> '!'), word app.word,
  mark varchar DEFAULT app.mark(), low varchar GENERATED ALWAYS AS (app.norm(note)) STORED);
CREATE INDEX t_word ON app.t (word);
CREATE INDEX t_norm ON app.t (app.norm(note));
CREATE STATISTICS app.t_size ON (app.size(note)), word FROM app.t;
CREATE TABLE app.fires (LIKE app.t INCLUDING ALL);
CREATE TRIGGER shout BEFORE INSERT ON app.fires FOR EACH ROW EXECUTE FUNCTION app.shout();
"""
TRAP = """
CREATE FUNCTION {schema}.{name}(varchar) RETURNS {result} LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN RAISE LOG {mark}; RETURN pg_catalog.{name}($1::pg_catalog.text); END $$
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def trapped(server: Cluster) -> Iterator[str]:
    """A database of mallory's, with a table of the superuser's; mallory may create in public."""
    with closing(psycopg.connect(server.conninfo(), autocommit=True)) as connection:
        connection.execute("CREATE ROLE mallory LOGIN; CREATE ROLE mon LOGIN")
        try:
            with own_database(
                server, "trapped", CODE + "; GRANT ALL ON SCHEMA public TO PUBLIC", owner="mallory"
            ) as conninfo:
                yield conninfo
        finally:
            connection.execute("DROP ROLE mallory, mon")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    lines = "".join(f"{number},Note {number},Word {number}\n" for number in range(ROWS))
    path.write_text("id,note,word\n" + lines, encoding="utf-8")
    return path


def set_traps(conninfo: str, schema: str, mark: str) -> None:
    """Plant functions of mallory's that are better matches for a varchar than those of pg_catalog."""
    with closing(psycopg.connect(f"{conninfo} user=mallory", autocommit=True)) as connection:
        for name, result in (("lower", "text"), ("upper", "text"), ("length", "int")):
            trap = sql.SQL(TRAP).format(
                schema=sql.Identifier(schema), name=sql.Identifier(name), result=sql.SQL(result), mark=mark
            )
            connection.execute(trap)


def interrupted(conninfo: str, rows: Path, table: str) -> None:
    stop = threading.Event()
    found = load_files(conninfo, [str(rows)], table, DROP, listener=At(stop.set), stop=stop)
    assert outcome_of(found).ended == "interrupted"


@pytest.mark.parametrize("path", ["default", "database's"])
def test_nothing_that_others_planted_runs(server: Cluster, trapped: str, rows: Path, path: str) -> None:
    mark = f"SPRUNG BY {path}"
    if path == "default":
        set_traps(trapped, "public", mark)
    else:
        ask(trapped, "CREATE SCHEMA evil AUTHORIZATION mallory; GRANT USAGE ON SCHEMA evil TO PUBLIC")
        set_traps(trapped, "evil", mark)
        ask(trapped, "ALTER DATABASE trapped SET search_path = evil, pg_catalog")
    begin = server.log_path.stat().st_size

    def log() -> str:
        return server.log_path.read_bytes()[begin:].decode("utf-8", "replace")

    with closing(psycopg.connect(trapped, autocommit=True)) as connection:
        connection.execute("SELECT lower('A'::varchar)")
        assert mark in log(), "the traps do not work"
    begin = server.log_path.stat().st_size
    before = facts_of(trapped, "app.t")
    interrupted(trapped, rows, "app.t")
    assert outcome_of(resume(trapped, "app.t")).unchanged
    interrupted(trapped, truncated(trapped, rows), "app.t")
    assert outcome_of(roll_back(trapped, "app.t")).unchanged
    interrupted(trapped, rows, "app.t")
    assert outcome_of(keep_as_is(trapped, "app.t", partly=True)).ended == "kept as it is"
    rejects = LoadOptions(indexes="keep", max_rejects=5)
    assert outcome_of(load_files(trapped, [str(truncated(trapped, rows))], "app.t", rejects)).rows == ROWS
    assert outcome_of(load_files(trapped, [str(rows)], "app.fires", LoadOptions())).rows == ROWS
    assert ask(trapped, "SELECT mark FROM app.fires WHERE id = 7") == [("NOTE 7",)]
    few = write_head(rows, 50)
    for table in ("app.t", "app.fires"):
        done = run("load", str(few), table, "--compare", "--yes", "-d", trapped, timeout_seconds=120)
        assert done.returncode == 0, done.stderr
    assert facts_of(trapped, "app.t") == before
    assert leftovers(trapped) == []
    assert mark not in log()


def truncated(conninfo: str, rows: Path) -> Path:
    ask(conninfo, "TRUNCATE app.t")
    return rows


def test_the_plan_lists_each_function_with_owner_and_path(trapped: str, rows: Path) -> None:
    ask(
        trapped,
        "ALTER FUNCTION app.size SET search_path = pg_catalog, app; ALTER FUNCTION app.mark OWNER TO mallory",
    )
    plan = plan_load(trapped, [str(rows)], "app.fires", LoadOptions()).plan
    found = {entry.name: (entry.owner, entry.path) for entry in plan.functions}
    assert found == {
        "app.norm(t character varying)": ("postgres", "pg_catalog"),
        "app.size(t character varying)": ("postgres", "pg_catalog, app"),
        "app.mark()": ("mallory", "pg_catalog"),
        "app.shout()": ("postgres", "pg_catalog"),
    }
    [choice] = [choice for choice in plan.choices if choice.what == "search_path of functions"]
    assert re.search(r"role \w+ may create objects", choice.reason)
    shown = run("load", str(rows), "app.fires", "--plan", "-d", trapped).stdout
    assert "app.mark() of role mallory (default of column mark; search_path pg_catalog)" in shown


NEEDS = {
    "a function": "CREATE FUNCTION app.f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT half($1)'",
    "a table": "CREATE FUNCTION app.f(int) RETURNS int LANGUAGE plpgsql AS"
    " 'BEGIN RETURN (SELECT max(a) FROM halves) / 2; END'",
    "a function in between": "CREATE FUNCTION app.g(int) RETURNS int LANGUAGE sql AS 'SELECT half($1)';"
    "CREATE FUNCTION app.f(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN app.g($1); END'",
}


@pytest.mark.parametrize("what", list(NEEDS))
def test_code_that_needs_an_unsafe_schema(trapped: str, tmp_path: Path, what: str) -> None:
    ask(
        trapped,
        "CREATE FUNCTION public.half(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 / 2';"
        "CREATE TABLE public.halves (a int); INSERT INTO halves VALUES (4);"
        f"{NEEDS[what]}; CREATE TABLE app.h (a int CHECK (app.f(a) >= 0))",
    )
    path = tmp_path / "h.csv"
    path.write_text("a\n4\n", encoding="utf-8")
    for work in (plan_load, load_files):
        with pytest.raises(MissingAbility, match="needs schemas that are not safe for a superuser") as failed:
            work(trapped, [str(path)], "app.h", LoadOptions())
        words = said(failed.value)
        assert ("public.half" in words) == (what != "a table")
        assert re.search(r"role \w+ may create objects, or has, in schema public", words)
        assert "--search-path public" in words
    named = run("load", str(path), "app.h", "--yes", "--search-path", "pg_catalog,public", "-d", trapped)
    assert named.returncode == 0, named.stderr
    with pytest.raises(UsageError, match="no schema `nowhere`"):
        load_files(trapped, [str(path)], "app.h", LoadOptions(search_path=["nowhere"]))
    # Where nobody else may create in it, the schema is in the path by itself.
    ask(trapped, "REVOKE CREATE ON SCHEMA public FROM PUBLIC; ALTER SCHEMA public OWNER TO postgres")
    assert outcome_of(load_files(trapped, [str(path)], "app.h", LoadOptions())).rows == 1
    assert ask(trapped, "SELECT count(*) FROM app.h") == [(2,)]


def test_a_role_without_superuser_has_its_own_path(trapped: str, tmp_path: Path) -> None:
    ask(
        trapped,
        "CREATE SCHEMA own AUTHORIZATION mon; ALTER ROLE mon SET search_path = own; SET ROLE mon;"
        "CREATE TABLE own.seen (a int); CREATE TABLE own.h (a int);"
        "CREATE FUNCTION own.f() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO seen VALUES (NEW.a); RETURN NEW; END';"
        "CREATE TRIGGER f BEFORE INSERT ON own.h FOR EACH ROW EXECUTE FUNCTION own.f()",
    )
    path = tmp_path / "h.csv"
    path.write_text("a\n4\n", encoding="utf-8")
    assert outcome_of(load_files(f"{trapped} user=mon", [str(path)], "h", LoadOptions())).rows == 1
    assert ask(trapped, "SELECT a FROM own.seen") == [(4,)]
    # One that may become superuser counts as one.
    ask(trapped, "GRANT postgres TO mon; GRANT CREATE ON SCHEMA own TO mallory")
    with pytest.raises(MissingAbility, match=r"own\.f\(\) of role mon names own\.seen"):
        load_files(f"{trapped} user=mon", [str(path)], "h", LoadOptions())


@pytest.mark.parametrize("options", [DROP, LoadOptions(single_transaction=True), LoadOptions(vacuum=True)])
def test_statistics_that_cannot_be_made_are_a_warning(trapped: str, rows: Path, options: LoadOptions) -> None:
    ask(trapped, "CREATE STATISTICS app.broken ON (1 / (id - id)), note FROM app.t")
    outcome = outcome_of(load_files(trapped, [str(rows)], "app.t", options))
    assert (outcome.ended, outcome.rows, outcome.unchanged) == ("loaded", ROWS, True)
    assert "no statistics were made (division by zero); later: " in " ".join(outcome.notes)
    assert leftovers(trapped) == []


def test_who_can_replace_the_table_is_said(trapped: str, tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text("a\n4\n", encoding="utf-8")
    ask(
        trapped,
        "CREATE SCHEMA hers AUTHORIZATION mallory; CREATE TABLE hers.h (a int); CREATE TABLE app.h (a int)",
    )
    ask(trapped, "REVOKE ALL ON SCHEMA hers FROM mallory")
    for table, owned in (("hers.h", True), ("app.h", False)):
        notes = " ".join(plan_load(trapped, [str(path)], table, LoadOptions()).plan.notes)
        assert ("role mallory owns schema hers, and can put another table" in notes) == owned


def test_an_index_with_an_operator_of_users_is_not_dropped(trapped: str, rows: Path) -> None:
    ask(
        trapped,
        "CREATE FUNCTION app.same(varchar, varchar) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS"
        " 'BEGIN RETURN app.norm($1) = app.norm($2); END';"
        "CREATE OPERATOR app.=== (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = app.same);"
        "CREATE INDEX t_same ON app.t (id) WHERE note OPERATOR(app.===) 'note 1'",
    )
    plan = plan_load(trapped, [str(rows)], "app.t", DROP).plan
    [action] = [entry.action for entry in plan.objects if entry.name == "t_same"]
    assert action == "keep"
    assert any(function.name.startswith("app.same(") for function in plan.functions)


def test_the_text_of_a_check_means_what_the_check_means(
    server: Cluster, trapped: str, tmp_path: Path
) -> None:
    """A better match for the arguments may lie in a schema of the path; the check does not call it."""
    ask(
        trapped,
        "CREATE ROLE clerk LOGIN; CREATE SCHEMA clerk AUTHORIZATION clerk; CREATE SEQUENCE public.ran;"
        "GRANT USAGE ON SEQUENCE public.ran TO clerk; GRANT USAGE ON SCHEMA public TO clerk;"
        "CREATE TABLE clerk.c (a text, b text, CHECK (concat(a, b) <> 'xy'));"
        "ALTER TABLE clerk.c OWNER TO clerk;"
        "CREATE FUNCTION public.concat(text, text) RETURNS text LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM nextval('public.ran'); RETURN 'planted'; END$$",
    )
    try:
        path = tmp_path / "c.csv"
        path.write_text("a,b\n1,2\nx,y\n3,4\n")
        given = LoadOptions(max_rejects=5)
        outcome = outcome_of(
            load_files(f"{trapped} user=clerk", [str(path)], "clerk.c", given, rejects=tmp_path / "bad")
        )
        assert (outcome.rows, outcome.rejected) == (2, 1)
        assert ask(trapped, "SELECT is_called FROM public.ran") == [(False,)]
    finally:
        ask(trapped, "DROP OWNED BY clerk CASCADE; DROP ROLE clerk")


def test_references_are_not_compared_by_an_operator_that_others_planted(
    server: Cluster, trapped: str, tmp_path: Path
) -> None:
    """As text, the operator of a foreign key may find a better match for a domain than the key has."""
    ask(
        trapped,
        "CREATE EXTENSION citext SCHEMA public; CREATE DOMAIN app.code AS public.citext;"
        "CREATE TABLE app.parent (k public.citext PRIMARY KEY); INSERT INTO app.parent VALUES ('a'), ('b');"
        "CREATE TABLE app.child (k app.code REFERENCES app.parent, boss int);"
        "ALTER TABLE app.child ADD UNIQUE (boss);"
        "ALTER TABLE app.child ADD FOREIGN KEY (boss) REFERENCES app.child (boss);"
        "CREATE SEQUENCE public.compared;"
        "CREATE FUNCTION public.planted(public.citext, app.code) RETURNS bool LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM nextval('public.compared'); RETURN true; END$$;"
        "CREATE OPERATOR public.= (LEFTARG = public.citext, RIGHTARG = app.code, FUNCTION = public.planted)",
    )
    path = tmp_path / "child.csv"
    path.write_text("k,boss\na,1\nmissing,3\nB,2\n")
    given = LoadOptions(max_rejects=5)
    outcome = outcome_of(load_files(trapped, [str(path)], "app.child", given, rejects=tmp_path / "bad"))
    assert ask(trapped, "SELECT is_called FROM public.compared") == [(False,)]
    assert (outcome.rows, outcome.rejected) == (2, 1)
