"""What sees how rows are divided among statements and transactions sees one COPY of each file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load import whole
from pgsweep.load.copying import chunks_of
from pgsweep.load.input.source import Input
from pgsweep.load.input.split import Chunk
from pgsweep.load.loading import load_files, plan_load
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run
from tests.fix_cluster import own_database
from tests.fix_load import ask, facts_of, leftovers, outcome_of, said

ROWS = 4000
WAYS = [
    LoadOptions(indexes="drop", piece_bytes=8192),
    LoadOptions(indexes="keep", piece_bytes=8192),
    LoadOptions(single_transaction=True, piece_bytes=8192),
    LoadOptions(max_rejects=0, piece_bytes=8192),
]


@pytest.fixture
def conninfo(wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with own_database(wheel18, "whole") as found:
        yield found


def written(path: Path, header: str, lines: list[str]) -> list[str]:
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return [str(path)]


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize(
    ("when", "for_each", "seen"),
    [
        ("AFTER", "REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT", [(ROWS,)]),
        ("AFTER", "FOR EACH STATEMENT", [(-1,)]),
        ("BEFORE", "FOR EACH STATEMENT", [(-1,)]),
    ],
)
def test_a_statement_trigger_fires_once(
    conninfo: str, tmp_path: Path, options: LoadOptions, when: str, for_each: str, seen: list[tuple[int]]
) -> None:
    counted = "(SELECT count(*) FROM fresh)" if "fresh" in for_each else "-1"
    ask(
        conninfo,
        "CREATE TABLE s (id int, note text); CREATE INDEX ON s (note); CREATE TABLE log (n bigint);"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN INSERT INTO public.log VALUES ({counted}); RETURN NULL; END';"
        f"CREATE TRIGGER t {when} INSERT ON s {for_each} EXECUTE FUNCTION f()",
    )
    files = written(tmp_path / "s.csv", "id,note", [f"{n},note {n}" for n in range(ROWS)])
    outcome = outcome_of(load_files(conninfo, files, "s", options))
    assert (outcome.rows, outcome.unchanged) == (ROWS, True)
    assert ask(conninfo, "TABLE log") == seen


REFERRING = {
    "immediate": "REFERENCES n",
    "deferrable": "REFERENCES n DEFERRABLE",
    "deferred": "REFERENCES n DEFERRABLE INITIALLY DEFERRED",
    "cascading": "REFERENCES n ON DELETE CASCADE",
}


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("key", list(REFERRING))
def test_children_may_come_before_parents(
    conninfo: str, tmp_path: Path, key: str, options: LoadOptions
) -> None:
    ask(conninfo, f"CREATE TABLE n (id int PRIMARY KEY, up int {REFERRING[key]}, note text)")
    before = facts_of(conninfo, "n")
    lines = [f"{n},{n - 1 if n > 1 else ''},{'x' * 20}" for n in range(ROWS, 0, -1)]
    files = written(tmp_path / "n.csv", "id,up,note", lines)
    outcome = outcome_of(load_files(conninfo, files, "n", options))
    assert (outcome.rows, outcome.rejected, outcome.unchanged) == (ROWS, 0, True)
    assert facts_of(conninfo, "n") == before


@pytest.mark.parametrize("key", [*REFERRING, "unique", "exclusion"])
def test_what_is_found_at_the_end_has_key_table_and_line(conninfo: str, tmp_path: Path, key: str) -> None:
    kinds = {
        "unique": "CREATE TABLE n (id int, up int UNIQUE DEFERRABLE INITIALLY DEFERRED)",
        "exclusion": "CREATE TABLE n (id int, up int, EXCLUDE USING btree (up WITH =) INITIALLY DEFERRED)",
    }
    ask(conninfo, kinds.get(key) or f"CREATE TABLE n (id int PRIMARY KEY, up int {REFERRING[key]})")
    lines = [f"{n},{n}" for n in range(1, ROWS)]
    lines[2500] = "2501,99" if key in kinds else "2501,9999"
    files = written(tmp_path / "n.csv", "id,up", lines)
    for options in WAYS[:3]:
        with pytest.raises(PgsweepError) as failed:
            load_files(conninfo, files, "n", options)
        words = said(failed.value)
        # Where the constraint is dropped for the load, making it again says no more than the key.
        assert "n.csv, line 2502" in words or (options.indexes == "drop" and key != "exclusion")
        assert "--resume" not in words
        assert f"Key (up)=({'99' if key in kinds else '9999'})" in words
        assert "nothing of the load is in the table" in words
        assert "crash" not in words
        assert ask(conninfo, "SELECT count(*) FROM n") == [(0,)]
    rejects = LoadOptions(max_rejects=5, piece_bytes=8192, indexes="keep")
    path = tmp_path / "bad.csv"
    outcome = outcome_of(load_files(conninfo, files, "n", rejects, rejects=path))
    assert (outcome.rows, outcome.rejected) == (ROWS - 2, 1)
    assert lines[2500] in path.read_text()
    assert leftovers(conninfo) == []


def test_a_deferred_key_to_another_table(conninfo: str, tmp_path: Path) -> None:
    ask(
        conninfo,
        "CREATE TABLE dfp (p int PRIMARY KEY); INSERT INTO dfp VALUES (1), (3);"
        "CREATE TABLE df (id int, p int REFERENCES dfp DEFERRABLE INITIALLY DEFERRED)",
    )
    files = written(tmp_path / "d.csv", "id,p", ["1,1", "2,99", "3,3"])
    done = run("load", *files, "df", "--yes", "-q", "-d", conninfo)
    assert done.returncode == 1
    assert 'd.csv, line 3: insert or update on table "df" violates foreign key constraint' in done.stderr
    assert 'Key (p)=(99) is not present in table "dfp"' in done.stderr
    outcome = outcome_of(load_files(conninfo, files, "df", LoadOptions(max_rejects=1)))
    assert (outcome.rows, outcome.rejected) == (2, 1)
    with pytest.raises(PgsweepError, match="more than 0 records are refused"):
        load_files(conninfo, files, "df", LoadOptions(max_rejects=0))
    refused = run(
        "load", "-", "df", "--rejects", str(tmp_path / "r"), "-d", conninfo, "--plan", stdin="1,1\n"
    )
    assert "can be read only once, and --rejects would read it again" in refused.stderr


@pytest.mark.parametrize("single", [True, False])
def test_many_bad_records_of_one_statement(conninfo: str, tmp_path: Path, single: bool) -> None:
    ask(conninfo, "CREATE TABLE n (id int PRIMARY KEY, up int REFERENCES n, note text)")
    lines = [f"{n},,note {n}" for n in range(ROWS)]
    for n in (0, 1, 700, 701, 3999):
        lines[n] = f"{n},x,bad {n}"
    lines[9], lines[2000] = "9,77777,no parent", "2000,77777,no parent either"
    files = written(tmp_path / "n.csv", "id,up,note", lines)
    options = LoadOptions(max_rejects=20, piece_bytes=4096, single_transaction=single)
    path = tmp_path / "bad.csv"
    outcome = outcome_of(load_files(conninfo, files, "n", options, rejects=path))
    assert (outcome.rows, outcome.rejected) == (ROWS - 7, 7)
    text = path.read_text()
    assert [line for line in lines if line in text] == [
        line for line in lines if "bad " in line or "no parent" in line
    ]


def test_a_value_that_is_too_long_for_an_index(conninfo: str, tmp_path: Path) -> None:
    import random

    noise = "".join(random.Random(1).choices("0123456789abcdefghijklmnopqrstuvwxyz/", k=20000))
    ask(conninfo, "CREATE TABLE li (id int, url text); CREATE INDEX li_url ON li (url)")
    lines = [f"{n},https://e.example/{noise if n == 26 else n}" for n in range(1, 40)]
    files = written(tmp_path / "li.csv", "id,url", lines)
    with pytest.raises(PgsweepError, match=r"line 27\b.*index row") as failed:
        load_files(conninfo, files, "li", LoadOptions())
    assert "crash" not in said(failed.value)
    outcome = outcome_of(load_files(conninfo, files, "li", LoadOptions(max_rejects=1, indexes="keep")))
    assert (outcome.rows, outcome.rejected) == (38, 1)
    ask(conninfo, "TRUNCATE li")
    incomplete = outcome_of(load_files(conninfo, files, "li", LoadOptions(indexes="drop")))
    assert incomplete.ended == "incomplete"


@pytest.mark.parametrize("state", ["0A000", "ZX001", "54000", "P0001"])
def test_a_trigger_says_what_it_likes(conninfo: str, tmp_path: Path, state: str) -> None:
    ask(
        conninfo,
        "CREATE TABLE g (id int, note text); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id = 3 THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}'; END IF;"
        " RETURN NEW; END $$; CREATE TRIGGER t BEFORE INSERT ON g FOR EACH ROW EXECUTE FUNCTION f()",
    )
    files = written(tmp_path / "g.csv", "id,note", [f"{n},x" for n in range(5)])
    with pytest.raises(PgsweepError, match=r"g\.csv, line 5: not this one") as failed:
        load_files(conninfo, files, "g", LoadOptions())
    assert "proxy" not in said(failed.value)
    outcome = outcome_of(load_files(conninfo, files, "g", LoadOptions(max_rejects=1)))
    assert (outcome.rows, outcome.rejected) == (4, 1)


def test_the_plan_says_what_sees_it(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "CREATE TABLE n (id int PRIMARY KEY, up int REFERENCES n)")
    files = written(tmp_path / "n.csv", "id,up", ["1,1"])
    choices = {c.what: (c.choice, c.reason) for c in plan_load(conninfo, files, "n", WAYS[0]).plan.choices}
    assert choices["transactions"][0] == "one"
    assert choices["statements"] == (
        "one COPY for each file",
        "foreign key n_up_fkey refers to the table itself",
    )
    with pytest.raises(UsageError, match="cannot be made UNLOGGED"):
        plan_load(conninfo, files, "n", LoadOptions(unlogged=True))


def test_a_key_is_found_as_its_type_has_it(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "CREATE TABLE sr (id int PRIMARY KEY, up int REFERENCES sr, note text)")
    one, two = tmp_path / "1.tsv", tmp_path / "2.tsv"
    one.write_text("1\t 9 \ta\\\nb\n2\t+09\tx\n3\t1\ty\n")
    two.write_text("9\t\\N\tlater\n10\t9\tgood\n11\t77\tbad\n")
    rejects = tmp_path / "bad"
    given = LoadOptions(header=False, columns=["id", "up", "note"], max_rejects=5)
    outcome = outcome_of(load_files(conninfo, [str(one), str(two)], "sr", given, rejects=rejects))
    # What refers to 9 in the first file is refused; in the second 9 is there.
    assert (outcome.rows, outcome.rejected) == (2, 4)
    assert ask(conninfo, "SELECT id FROM sr ORDER BY id") == [(9,), (10,)]


def test_a_trigger_at_the_end_of_the_transaction(conninfo: str, tmp_path: Path) -> None:
    ask(
        conninfo,
        "CREATE TABLE late (id int PRIMARY KEY);"
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION late()",
    )
    path = tmp_path / "x.csv"
    path.write_text("id\n1\n2\nx\n")
    given = LoadOptions(indexes="drop", max_rejects=1)
    outcome = outcome_of(load_files(conninfo, [str(path)], "late", given, rejects=tmp_path / "bad"))
    assert (outcome.rows, outcome.rejected) == (2, 1)


@pytest.mark.parametrize("rejects", [None, 5])
def test_what_a_trigger_leaves_out_is_said(conninfo: str, tmp_path: Path, rejects: int | None) -> None:
    ask(
        conninfo,
        "CREATE TABLE sieve (id int); CREATE FUNCTION sieve() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RETURN CASE WHEN NEW.id > 1 THEN NEW END; END';"
        "CREATE TRIGGER sieve BEFORE INSERT ON sieve FOR EACH ROW EXECUTE FUNCTION sieve()",
    )
    path = tmp_path / "x.csv"
    path.write_text("id\n1\n2\n3\n" + ("x\n" if rejects else ""))
    given, place = LoadOptions(max_rejects=rejects), tmp_path / "bad" if rejects else None
    outcome = outcome_of(load_files(conninfo, [str(path)], "sieve", given, rejects=place))
    assert (outcome.rows, outcome.rejected) == (2, 1 if rejects else 0)
    assert "1 record not in the table: a trigger left them out" in outcome.notes


@pytest.mark.parametrize("refusing", [9, 2])
def test_a_deferred_trigger_is_run_before_indexes_are_made(
    conninfo: str, tmp_path: Path, refusing: int
) -> None:
    ask(
        conninfo,
        "CREATE TABLE d (id int, note text); CREATE INDEX ON d (note);"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN IF NEW.id = {refusing} THEN RAISE 'not %', NEW.id; END IF; RETURN NULL; END$$;"
        "CREATE CONSTRAINT TRIGGER c AFTER INSERT ON d DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION f()",
    )
    paths = written(tmp_path / "d.csv", "id,note", ["1,a", "2,b", "x,c"])
    given = LoadOptions(indexes="drop", max_rejects=5)
    if refusing == 2:
        with pytest.raises(PgsweepError, match="not 2") as failed:
            load_files(conninfo, paths, "d", given, rejects=tmp_path / "bad")
        assert "does not say which" in said(failed.value)
    else:
        outcome = load_files(conninfo, paths, "d", given, rejects=tmp_path / "bad").outcome
        assert outcome is not None
        assert (outcome.rows, outcome.rejected, outcome.unchanged) == (2, 1, True)


@pytest.mark.parametrize("key", ["", "DEFERRABLE INITIALLY DEFERRED"])
def test_missing_references_are_found_at_once(
    conninfo: str, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once cost a reading of the file."""
    ask(
        conninfo,
        'CREATE TABLE q (id int PRIMARY KEY); CREATE TABLE "n%s" (id int PRIMARY KEY,'
        f' "up%s" int REFERENCES "n%s" {key}, other int REFERENCES q,'
        "seq int GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT now());"
        'INSERT INTO q VALUES (1); INSERT INTO "n%s" VALUES (9000)',
    )
    # Every second has no parent, one none in q; to that one refers, and to this others, one of the next file.
    lines = [f"{n},{77000 + n if n % 2 else 9000},1" for n in range(1000)]
    lines[2], lines[4], lines[600], lines[10] = "2,9000,5", "4,2,1", "600,4,", "x,9000,1"
    more = ["2001,2002,1", "2002,2001,1", "2003,600,1", "2004,8,1"]
    files = written(tmp_path / "1.csv", "id,up%s,other", lines)
    files += written(tmp_path / "2.csv", "id,up%s,other", more)
    read: list[Input] = []

    def noted(entry: Input, *given: Any) -> Iterator[Chunk]:
        read.append(entry)
        return chunks_of(entry, *given)

    monkeypatch.setattr(whole, "chunks_of", noted)
    options = LoadOptions(max_rejects=1000, piece_bytes=4096)
    path = tmp_path / "bad.csv"
    outcome = outcome_of(load_files(conninfo, files, '"n%s"', options, rejects=path))
    assert (outcome.rows, outcome.rejected) == (499, 505)
    assert len(read) < 10
    found = list(csv.DictReader(path.read_text().splitlines()))
    assert [each["record"] for each in found] == [
        *(lines[n] for n in range(1000) if n % 2 or n in (2, 4, 10, 600)),
        more[2],
    ]
    assert found[0]["reason"] == (
        'insert or update on table "n%s" violates foreign key constraint "n%s_up%s_fkey" '
        '(Key (up%s)=(77001) is not present in table "n%s".)'
    )
    ask(conninfo, 'DELETE FROM "n%s" WHERE id <> 9000')
    with pytest.raises(PgsweepError, match=r"more than 400 records are refused, the last: .*77"):
        load_files(conninfo, files, '"n%s"', LoadOptions(max_rejects=400))


@pytest.mark.parametrize("table", ["tree", "tree_1"])
def test_missing_references_of_partitions(conninfo: str, tmp_path: Path, table: str) -> None:
    ask(
        conninfo,
        "CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree) PARTITION BY RANGE (id);"
        "CREATE TABLE tree_1 PARTITION OF tree FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE tree_2 PARTITION OF tree FOR VALUES FROM (100) TO (200); INSERT INTO tree VALUES (150)",
    )
    files = written(tmp_path / "t.csv", "id,up", ["1,2", "2,1", "3,150", "4,151", "5,6", "7,4"])
    path = tmp_path / "bad.csv"
    outcome = outcome_of(load_files(conninfo, files, table, LoadOptions(max_rejects=9), rejects=path))
    assert (outcome.rows, outcome.rejected) == (3, 3)
    assert [line.split(",")[-1] for line in path.read_text().splitlines()[1:]] == ['151"', '6"', '4"']


@pytest.mark.parametrize("key", ["refers to the table itself", "of public.child refers to it"])
def test_what_refers_to_a_partitioned_table_refers_to_its_partitions(
    conninfo: str, tmp_path: Path, key: str
) -> None:
    """A partition was loaded in pieces, and their undoing would have removed what refers to them."""
    ask(
        conninfo,
        "CREATE TABLE tree (id int PRIMARY KEY, up int) PARTITION BY RANGE (id);"
        "CREATE TABLE tree_1 PARTITION OF tree FOR VALUES FROM (0) TO (100); CREATE TABLE child (id int)",
    )
    if "itself" in key:
        ask(conninfo, "ALTER TABLE tree ADD FOREIGN KEY (up) REFERENCES tree")
    else:
        ask(conninfo, "ALTER TABLE child ADD FOREIGN KEY (id) REFERENCES tree ON DELETE CASCADE")
    files = written(tmp_path / "t.csv", "id,up", ["1,2", "2,1"])
    plan = plan_load(conninfo, files, "tree_1", LoadOptions(indexes="drop", max_rejects=1)).plan
    reasons = {choice.what: choice.reason for choice in plan.choices}
    assert (plan.strategy, key in reasons["transactions"]) == ("one transaction", True)
