"""A load that ends early has changed nothing else: no trigger has fired, no other table has lost a row."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load.loading import forget, load_files, plan_load, resume, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run
from tests.fix_cluster import own_database
from tests.fix_load import At, ask, facts_of, leftovers, outcome_of, said, write_head

pytestmark = pytest.mark.one_server

ROWS = 3000
DROP = LoadOptions(indexes="drop", piece_bytes=8192)
KEPT = LoadOptions(indexes="drop", piece_bytes=8192, keep_on_failure=True)
TABLE = """
CREATE TABLE t (id int PRIMARY KEY, note text); CREATE INDEX t_note ON t (note);
CREATE TABLE log (what text);
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO log VALUES (TG_OP); RETURN OLD; END';
CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'nobody removes from %', TG_TABLE_NAME; END $$;
CREATE FUNCTION dropped() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
"""
OTHERS = (
    "CREATE TABLE other (id int, t int {}); INSERT INTO t VALUES (-1, 'x'); INSERT INTO other VALUES (1, -1);"
)
WATCHED = {
    "cascade": OTHERS.format("REFERENCES t ON DELETE CASCADE"),
    "set null": OTHERS.format("REFERENCES t ON DELETE SET NULL"),
    "set default": OTHERS.format("DEFAULT 7 REFERENCES t ON DELETE SET DEFAULT"),
    "no action": OTHERS.format("REFERENCES t"),
    "row trigger": "CREATE TRIGGER g BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION noted()",
    "after trigger": "CREATE TRIGGER g AFTER DELETE ON t FOR EACH ROW EXECUTE FUNCTION noted()",
    "statement trigger": "CREATE TRIGGER g AFTER DELETE ON t FOR EACH STATEMENT EXECUTE FUNCTION noted()",
    "refusing trigger": "CREATE TRIGGER g BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION refused()",
    "silent trigger": "CREATE TRIGGER g BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION dropped()",
    "truncate guard": "CREATE TRIGGER g BEFORE TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION refused()",
    "rule": "CREATE RULE g AS ON DELETE TO t DO ALSO INSERT INTO log VALUES ('rule')",
    "instead": "CREATE RULE g AS ON DELETE TO t DO INSTEAD NOTHING",
}


@pytest.fixture
def conninfo(server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with own_database(server, "undo", TABLE) as found:
        yield found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("id,note\n" + "".join(f"{number},note {number}\n" for number in range(ROWS)))
    return path


@pytest.fixture
def bad(tmp_path: Path, rows: Path) -> Path:
    path = tmp_path / "bad.csv"
    path.write_text(rows.read_text() + "x,y\n")
    return path


def everything(conninfo: str) -> list[list[tuple[object, ...]]]:
    tables = [
        name
        for (name,) in ask(
            conninfo,
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND"
            " relnamespace = 'public'::regnamespace ORDER BY 1",
        )
    ]
    return [ask(conninfo, f"SELECT ctid, xmin, * FROM {name} ORDER BY 1") for name in tables]


@pytest.mark.parametrize("watched", list(WATCHED))
@pytest.mark.parametrize("options", [DROP, KEPT])
def test_a_refused_record_leaves_all_tables_as_they_were(
    conninfo: str, bad: Path, watched: str, options: LoadOptions
) -> None:
    ask(conninfo, WATCHED[watched])
    before = facts_of(conninfo, "t"), everything(conninfo)
    with pytest.raises(PgsweepError, match=rf"line {ROWS + 2}, column id: invalid input syntax") as failed:
        load_files(conninfo, [str(bad)], "t", options)
    assert "nothing of the load is in the table" in said(failed.value)
    assert (facts_of(conninfo, "t"), everything(conninfo)) == before
    assert leftovers(conninfo) == []
    plan = plan_load(conninfo, [str(bad)], "t", options).plan
    assert plan.strategy == "one transaction"


def test_of_a_small_load_too_what_was_copied_is_kept_where_that_is_asked(conninfo: str, bad: Path) -> None:
    before = facts_of(conninfo, "t"), everything(conninfo)
    options = LoadOptions(indexes="keep", piece_bytes=8192, keep_on_failure=True)
    with pytest.raises(PgsweepError, match=rf"line {ROWS + 2}, column id") as failed:
        load_files(conninfo, [str(bad)], "t", options)
    assert "--resume" in said(failed.value)
    assert everything(conninfo) != before[1]
    roll_back(conninfo, "t")
    assert (facts_of(conninfo, "t"), everything(conninfo)) == before
    assert leftovers(conninfo) == []


def interrupted(conninfo: str, rows: Path, table: str = "t") -> None:
    stop = threading.Event()
    found = load_files(conninfo, [str(rows)], table, DROP, listener=At(stop.set), stop=stop)
    assert outcome_of(found).ended == "interrupted"


@pytest.mark.parametrize("watched", [name for name in WATCHED if name != "no action"])
def test_what_was_made_since_is_never_fired(conninfo: str, rows: Path, watched: str) -> None:
    before = facts_of(conninfo, "t")
    interrupted(conninfo, rows)
    # The key of the table is dropped for the time being, and a foreign key needs one.
    ask(conninfo, "ALTER TABLE t ADD CONSTRAINT t_pkey PRIMARY KEY (id)")
    ask(
        conninfo, WATCHED[watched].replace("INSERT INTO t VALUES (-1, 'x');", "").replace("(1, -1)", "(1, 0)")
    )
    there = everything(conninfo)
    with pytest.raises(PgsweepError, match="cannot be removed without doing more") as failed:
        roll_back(conninfo, "t")
    assert "nothing was removed" in said(failed.value)
    assert "pgsweep load --resume public.t" in said(failed.value)
    assert everything(conninfo) == there
    if "other" in WATCHED[watched]:
        ask(conninfo, "DROP TABLE other")
    else:
        ask(conninfo, f"DROP {'RULE' if 'RULE' in WATCHED[watched] else 'TRIGGER'} g ON t")
    # The primary key that was made by hand is the one that the load dropped.
    assert outcome_of(roll_back(conninfo, "t")).unchanged
    assert (facts_of(conninfo, "t"), leftovers(conninfo)) == (before, [])
    assert ask(conninfo, "SELECT count(*) FROM log") == [(0,)]


def test_a_percent_sign_in_a_name(conninfo: str, rows: Path, bad: Path) -> None:
    name = "rate %, %s, 100%%, %(id)s {}"
    ask(
        conninfo,
        f'CREATE TABLE "{name}" (id int PRIMARY KEY, note text); CREATE INDEX "{name} i" ON "{name}" (note)',
    )
    before = facts_of(conninfo, f'"{name}"')
    interrupted(conninfo, rows, f'"{name}"')
    assert outcome_of(roll_back(conninfo, f'"{name}"')).unchanged
    with pytest.raises(PgsweepError, match="invalid input syntax") as failed:
        load_files(conninfo, [str(bad)], f'"{name}"', DROP)
    assert "the load was rolled back" in said(failed.value)
    assert facts_of(conninfo, f'"{name}"') == before
    few = write_head(rows, 50)
    done = run("load", str(few), f'"{name}"', "--compare", "--yes", "-d", conninfo, timeout_seconds=120)
    assert done.returncode == 0, done.stderr
    assert outcome_of(load_files(conninfo, [str(rows)], f'"{name}"', DROP)).unchanged


BY_HAND = {
    "index": "CREATE INDEX t_note ON t (note)",
    "key": "ALTER TABLE t ADD PRIMARY KEY (id)",
    "index of the key": "CREATE UNIQUE INDEX t_pkey ON t (id)",
    "both": "CREATE INDEX t_note ON t (note); ALTER TABLE t ADD PRIMARY KEY (id)",
    "foreign key": "ALTER TABLE t ADD CONSTRAINT t_up FOREIGN KEY (up) REFERENCES parent",
    "not valid": "ALTER TABLE t ADD CONSTRAINT t_up FOREIGN KEY (up) REFERENCES parent NOT VALID",
}


@pytest.mark.parametrize("what", list(BY_HAND))
@pytest.mark.parametrize("then", [resume, roll_back])
def test_what_was_made_by_hand_is_recognized(conninfo: str, rows: Path, what: str, then: object) -> None:
    ask(
        conninfo,
        "CREATE TABLE parent (id int PRIMARY KEY); COMMENT ON INDEX t_note IS 'notes';"
        "ALTER TABLE t ADD up int CONSTRAINT t_up REFERENCES parent",
    )
    before = facts_of(conninfo, "t")
    interrupted(conninfo, rows)
    ask(conninfo, BY_HAND[what])
    assert callable(then)
    outcome = outcome_of(then(conninfo, "t"))
    assert (outcome.ended, outcome.unchanged) == ("loaded" if then is resume else "rolled back", True)
    assert (facts_of(conninfo, "t"), leftovers(conninfo)) == (before, [])


@pytest.mark.parametrize(
    ("taken", "freed"),
    [
        ("CREATE TABLE t_note ()", "ALTER TABLE t_note RENAME TO n"),
        ("CREATE VIEW t_note AS SELECT 1", "ALTER TABLE t_note RENAME TO n"),
        ("CREATE INDEX t_note ON t (id, note)", "DROP INDEX t_note"),
        ("CREATE SEQUENCE t_note", "DROP SEQUENCE t_note"),
    ],
)
def test_a_name_that_another_object_has_taken(conninfo: str, rows: Path, taken: str, freed: str) -> None:
    before = facts_of(conninfo, "t")
    interrupted(conninfo, rows)
    ask(conninfo, taken)
    outcome = outcome_of(roll_back(conninfo, "t"))
    assert outcome.ended == "incomplete"
    words = " ".join(outcome.problems)
    assert "another object has taken its name" in words
    assert "pgsweep load --rollback public.t" in words
    ask(conninfo, freed)
    assert outcome_of(roll_back(conninfo, "t")).unchanged
    assert facts_of(conninfo, "t") == before


def test_a_journal_can_be_forgotten(conninfo: str, rows: Path) -> None:
    interrupted(conninfo, rows)
    there = everything(conninfo)
    lines = outcome_of(forget(conninfo, "t", really=False)).problems
    assert "rows of the load stay in the table" in lines[0]
    assert any("missing: index t_note; to make it later: CREATE INDEX t_note" in line for line in lines)
    refused = run("load", "--forget", "t", "-d", conninfo)
    assert refused.returncode == 2
    assert "missing: index t_note" in refused.stderr
    assert leftovers(conninfo) != []
    done = run("load", "--forget", "t", "--yes", "-d", conninfo)
    assert done.returncode == 0, done.stderr
    assert "the journal of the load of public.t is removed; nothing else was changed" in done.stdout
    assert (everything(conninfo), leftovers(conninfo)) == (there, [])
    with pytest.raises(UsageError, match="no load of `t` is unfinished"):
        forget(conninfo, "t", really=True)


def test_a_limit_of_connections_is_found_before_anything_is_dropped(conninfo: str, rows: Path) -> None:
    ask(
        conninfo,
        "DROP ROLE IF EXISTS narrow; CREATE ROLE narrow LOGIN CONNECTION LIMIT 1;"
        "GRANT CREATE ON DATABASE undo TO narrow;"
        "ALTER TABLE t OWNER TO narrow; GRANT ALL ON SCHEMA public TO narrow",
    )
    before = facts_of(conninfo, "t")
    try:
        # The second session, which asks for the path, is one too many already.
        for limit in (1, 2):
            ask(conninfo, f"ALTER ROLE narrow CONNECTION LIMIT {limit}")
            options = LoadOptions(indexes="drop", piece_bytes=8192, jobs=4)
            with pytest.raises(PgsweepError, match="too many connections for role"):
                load_files(f"{conninfo} user=narrow", [str(rows)], "t", options)
            assert (facts_of(conninfo, "t"), leftovers(conninfo)) == (before, [])
    finally:
        ask(conninfo, "ALTER TABLE t OWNER TO postgres; DROP OWNED BY narrow; DROP ROLE narrow")


@pytest.mark.parametrize("then", [resume, roll_back])
def test_an_error_after_the_drop_says_what_is_dropped(
    conninfo: str, rows: Path, monkeypatch: pytest.MonkeyPatch, then: object
) -> None:
    from pgsweep.errors import ConnectionFailed
    from pgsweep.load import rebuild

    def refused(*_: object) -> None:
        raise ConnectionFailed("too many clients", hint="close some")

    interrupted(conninfo, rows)
    assert callable(then)
    with monkeypatch.context() as patch, pytest.raises(PgsweepError, match="too many clients") as failed:
        patch.setattr(rebuild, "open_session", refused)
        then(conninfo, "t")
    word = "resume" if then is resume else "rollback"
    assert "objects that the load dropped are not made again" in said(failed.value)
    assert f"pgsweep load --{word} public.t" in said(failed.value)
    assert outcome_of(then(conninfo, "t")).unchanged
