"""What errors of a load say: the true cause, in words that the user knows."""

from __future__ import annotations

import csv
import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgsweep.errors import PgsweepError
from pgsweep.load.loading import load_files, plan_load
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load import journal as load_journal
from pgsweep.pg.load.copy import BadRow, CopyTarget, copy, open_session
from pgsweep.pg.private.cluster import Cluster
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.load import load_text
from tests.fix_cli import run
from tests.fix_load import At, ask, count_of, outcome_of, refused, said, trouble_database
from tests.fix_process import busyness


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def conninfo(wheel18: Cluster) -> Iterator[str]:
    with trouble_database(wheel18) as found:
        yield found


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("most", [None, 10])
def test_a_line_that_ends_copy_is_the_cause(
    debian15: Cluster, tmp_path: Path, single: bool, most: int | None
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,a,name\n1,1,x\n\\.\n2,2,y\n")
    given = LoadOptions(indexes="drop", single_transaction=single, max_rejects=most)
    rejects = tmp_path / "bad" if most else None
    with trouble_database(debian15) as older:
        with pytest.raises(PgsweepError, match="the server took 1 row of 3 records") as failed:
            load_files(older, [str(path)], "t", given, rejects=rejects)
        assert r"a line that is only `\.` ends COPY on servers before 18" in said(failed.value)
        assert ("the load was rolled back" in said(failed.value)) is not single
        assert count_of(older) == 0


@pytest.mark.parametrize(("codec", "name"), [("utf-16", "UTF-16"), ("utf-32", "UTF-32")])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_a_file_in_utf_16_is_to_be_converted(
    conninfo: str, tmp_path: Path, codec: str, name: str, suffix: str
) -> None:
    path = tmp_path / f"its rows.{suffix}"
    path.write_bytes("id,a,name\n1,1,x\n".encode(codec))
    with pytest.raises(PgsweepError, match=f"is in {name}") as failed:
        plan_load(conninfo, [str(path)], "t", LoadOptions())
    assert failed.value.hint == f"convert it: iconv -f {name} -t UTF-8 '{path}'"


def test_one_is_not_many_and_names_are_quoted(conninfo: str, tmp_path: Path) -> None:
    terminal = Terminal(width=200)
    ask(conninfo, 'CREATE UNLOGGED TABLE u ("Id x" int, "Wert €" text, "a,b" text)')
    path = tmp_path / "rows.csv"
    path.write_text('Id x,Wert €,"a,b"\n1,x,y\nx,x,x\n')
    plan = load_text(plan_load(conninfo, [str(path)], "u", LoadOptions()), terminal)
    assert "public.u: an unlogged table, about 0 rows" in plan
    assert 'columns: "Id x", "Wert €", "a,b"' in plan
    assert "about 2 records" in plan
    given = LoadOptions(max_rejects=5)
    done = load_text(load_files(conninfo, [str(path)], "u", given, rejects=tmp_path / "bad"), terminal)
    assert "1 row loaded into public.u" in done
    assert "1 record refused, in" in done
    path.write_text('Id x,Wert €,"a,b"\nx,x,x\ny,y,y\n')
    with pytest.raises(PgsweepError, match="more than 1 record is refused, the last"):
        load_files(conninfo, [str(path)], "u", LoadOptions(max_rejects=1), rejects=tmp_path / "bad 2")


@pytest.mark.parametrize("one_statement", [False, True])
def test_refused_records_are_kept_where_they_are_too_many(
    conninfo: str, tmp_path: Path, one_statement: bool
) -> None:
    """The load is undone, and its user needs them to see why; what was not dropped is not made again."""
    ask(conninfo, "CREATE TABLE dear (id int PRIMARY KEY, price int CHECK (price < 9))")
    if one_statement:
        body = "RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
        ask(conninfo, f"CREATE FUNCTION nothing() {body}")
        ask(conninfo, "CREATE TRIGGER looks AFTER INSERT ON dear EXECUTE FUNCTION nothing()")
    path, bad = tmp_path / "rows.csv", tmp_path / "bad.csv"
    path.write_text("id,price\n" + "".join(f"{n},{10 if n % 10 == 0 else 1}\n" for n in range(1, 100)))
    given = LoadOptions(max_rejects=2, piece_bytes=100, jobs=None if one_statement else 1)
    with pytest.raises(PgsweepError) as failed:
        load_files(conninfo, [str(path)], "dear", given, rejects=bad)
    assert [line for line, _ in refused(bad)][:3] == [11, 21, 31]
    assert str(bad) in (failed.value.hint or "")
    assert "made again" not in said(failed.value)
    assert ask(conninfo, "SELECT count(*) FROM dear") == [(0,)]


@pytest.mark.parametrize("first", [False, True])
def test_rows_of_a_load_that_is_undone_are_left_to_vacuum(conninfo: str, tmp_path: Path, first: bool) -> None:
    """A table that was empty is truncated, and nothing is left."""
    ask(conninfo, f"CREATE TABLE undone AS SELECT -1 AS id{' WHERE false' if first else ''}")
    path = tmp_path / "rows.csv"
    path.write_text("id\n" + "".join(f"{n}\n" for n in range(200_000)) + "x\n")
    done = run("load", str(path), "undone", "-d", conninfo, "--yes", "--jobs", "2", "--piece", "64kB")
    assert done.returncode == 1, done.stderr
    assert ("VACUUM" in done.stderr) is not first
    assert (ask(conninfo, "SELECT pg_relation_size('undone')") == [(0,)]) is first


@pytest.mark.parametrize("single", [False, True])
def test_duplicates_are_found_without_dead_rows(conninfo: str, tmp_path: Path, single: bool) -> None:
    """Of the first, which is tried, there are some; a record is no duplicate of one that is refused."""
    ask(
        conninfo,
        "CREATE TABLE keyed (id int PRIMARY KEY, name text, n serial UNIQUE, UNIQUE (name), CHECK (id <> 4));"
        "INSERT INTO keyed VALUES (2, 'there')",
    )
    path = tmp_path / "rows.csv"
    lines = [f"{n},name {n}\n" for n in range(10, 20_000)]
    odd = {
        50: "2,new\n",  # as in the table
        51: "10,other\n",  # as before in the file
        60: "20001,name 12\n",  # by the other index
        61: "20001,name 20001\n",  # no duplicate of one that was refused
        62: "4,four\n",  # by the check
        63: "20002,four\n",  # no duplicate of it
        64: "x,five\n",  # not to be read
        65: "20003,five\n",
        66: "20004,\n",  # NULL is no duplicate of NULL
        67: "20005,\n",
    }
    for at, line in odd.items():
        lines.insert(at, line)
    path.write_text("id,name\n" + "".join(lines))
    given = LoadOptions(max_rejects=100, single_transaction=single)
    outcome = outcome_of(load_files(conninfo, [str(path)], "keyed", given, rejects=tmp_path / "bad"))
    with (tmp_path / "bad").open(newline="") as file:
        reasons = {int(row["line"]): row["reason"] for row in csv.DictReader(file)}
    # Lines count from 1, the header is the first.
    assert sorted(line - 2 for line in reasons) == [50, 51, 60, 62, 64]
    begin = "duplicate key value violates unique constraint"
    assert reasons[52] == f'{begin} "keyed_pkey" (Key (id)=(2) already exists.)'
    assert reasons[62] == f'{begin} "keyed_name_key" (Key (name)=(name 12) already exists.)'
    [(size, rows)] = ask(conninfo, "SELECT pg_relation_size('keyed') / 8192, count(*) FROM keyed")
    assert rows == len(lines) - 5 + 1
    assert size < rows / 135, "about 148 rows fit a page"
    assert not [note for note in outcome.notes if "VACUUM" in note]


@pytest.mark.parametrize(
    "index",
    [
        "(lower(name))",
        "(name) WHERE id > 5",
        "(name text_pattern_ops)",
        '(name COLLATE "C")',
        "(length(name), name)",
    ],
)
def test_duplicates_of_any_unique_index_are_found(conninfo: str, tmp_path: Path, index: str) -> None:
    ask(conninfo, f"CREATE TABLE indexed (id int, name text); CREATE UNIQUE INDEX ON indexed {index}")
    path = tmp_path / "rows.csv"
    path.write_text("id,name\n10,a\n20,b\n30,a\n40,c\n")
    given = LoadOptions(max_rejects=5)
    load_files(conninfo, [str(path)], "indexed", given, rejects=tmp_path / "bad")
    assert refused(tmp_path / "bad") == [(4, "30,a")]


def test_dead_rows_of_the_search_are_told_with_the_remedy(conninfo: str, tmp_path: Path) -> None:
    """Where a foreign key may refuse records too, duplicates are found by writing."""
    ask(conninfo, "CREATE TABLE twice (id int PRIMARY KEY, filler text, other int REFERENCES twice)")
    path = tmp_path / "rows.csv"
    lines = [f"{1 if n % 700 == 5 else n},{'x' * 20}\n" for n in range(20_000)]
    path.write_text("id,filler\n" + "".join(lines))
    given = LoadOptions(max_rejects=100)
    outcome = outcome_of(load_files(conninfo, [str(path)], "twice", given, rejects=tmp_path / "bad"))
    assert outcome.rejected > 20
    assert "dropping" not in {step.what for step in outcome.steps}
    before = ask(conninfo, "SELECT pg_relation_size('twice')")
    [vacuum] = [note for note in outcome.notes if "VACUUM" in note]
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(vacuum[vacuum.index("VACUUM") :].encode())
    more = tmp_path / "more.csv"
    more.write_text("id,filler\n" + "".join(f"{30_000 + n},{'x' * 20}\n" for n in range(5_000)))
    outcome = outcome_of(load_files(conninfo, [str(more)], "twice", LoadOptions()))
    assert not outcome.notes
    assert ask(conninfo, "SELECT pg_relation_size('twice')") == before, "its space is used again"


def test_a_line_that_ends_copy_does_so_in_text_on_every_server(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("1\t1\tx\n\\.\n2\t2\ty\n")
    with pytest.raises(PgsweepError, match="the server took 1 row of 3 records") as failed:
        load_files(conninfo, [str(path)], "t", LoadOptions())
    assert "before 18" not in said(failed.value)


@pytest.mark.parametrize(("codec", "name"), [("latin-1", "LATIN1"), ("cp1252", "WIN1252")])
def test_a_file_in_another_encoding_is_to_be_named_so(
    conninfo: str, tmp_path: Path, codec: str, name: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(f"id,a,name\n1,1,caf\xe9{'€' if name == 'WIN1252' else ''}\n".encode(codec))
    with pytest.raises(PgsweepError, match=r"line 2: invalid byte sequence .*0xe9") as failed:
        load_files(conninfo, [str(path)], "t", LoadOptions())
    assert f"--encoding {name}; else correct it, or have" in said(failed.value)
    assert outcome_of(load_files(conninfo, [str(path)], "t", LoadOptions(encoding=name))).rows == 1


def test_no_folder_for_a_local_journal_has_a_reason(
    conninfo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, path = tmp_path / "shared", tmp_path / "rows.csv"
    (shared / "pgsweep").mkdir(parents=True)
    (shared / "pgsweep").chmod(0o777)
    monkeypatch.setenv("XDG_STATE_HOME", str(shared))
    path.write_text("id,a,name\n1,1,x\n")
    at = At()
    load_files(conninfo, [str(path)], "t", LoadOptions(indexes="drop"), listener=at)
    [note] = [note for note in at.notes if "local journal" in note]
    assert note.startswith(f"no local journal is written: `{shared}/pgsweep` cannot be trusted: ")
    assert "others" in note
    assert note.endswith("; name a file: --journal FILE")


def test_half_of_a_character_is_not_a_file_cut_short(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for text, reason in (
        ('{"id": 1, "name": "\\ud83d"}\n', "half of a character"),
        ('{"id": 1\n', "truncated"),
    ):
        path.write_text(text)
        with pytest.raises(PgsweepError, match=f"line 1: .*{reason}"):
            load_files(conninfo, [str(path)], "t", LoadOptions())


def test_a_load_at_work_was_not_cut_short(
    conninfo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_journal, "_CLAIM_PATIENCE_SECONDS", 0.2)
    path = tmp_path / "rows.csv"
    path.write_text("id,a,name\n1,1,x\nx,1,x\n")
    given = LoadOptions(indexes="drop", keep_on_failure=True)
    with pytest.raises(PgsweepError):
        load_files(conninfo, [str(path)], "t", given)
    with pytest.raises(PgsweepError, match="has begun and not ended"):
        load_files(conninfo, [str(path)], "t", given)
    [(oid,)] = ask(conninfo, "SELECT 't'::regclass::oid::int")
    with open_session(conninfo) as other:
        load_journal.claim(other, oid)
        with pytest.raises(PgsweepError, match="another load of this table is at work"):
            load_files(conninfo, [str(path)], "t", given)


def test_a_plan_does_not_wait_for_a_load_at_work(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,a,name\n1,1,x\n")
    [(oid,)] = ask(conninfo, "SELECT 't'::regclass::oid::int")
    with open_session(conninfo) as other:
        # Or a question of ours would be compiled, for seconds.
        assert other.execute("SHOW jit").fetchone() == ("off",)
        load_journal.claim(other, oid)
        # As a load in one transaction locks it.
        with other.transaction():
            other.execute("LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE")
            begin = time.monotonic()
            done = run("load", str(path), "t", "--plan", "-d", conninfo)
            assert f"another load of this table is at work (process {other.info.backend_pid}" in done.stderr
            patience_seconds = load_journal._CLAIM_PATIENCE_SECONDS * busyness()
            assert time.monotonic() - begin < patience_seconds / 2
    assert plan_load(conninfo, [str(path)], "t", LoadOptions()).plan.table == "public.t"


def test_a_table_that_was_never_analyzed_is_not_said_to_be_empty(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,a,name\n-1,1,x\n")
    given = ["load", str(path), "t", "--plan", "--indexes", "drop", "--single-transaction", "-d", conninfo]
    empty = run(*given).stdout
    assert "about 0 rows" in empty
    assert "freezing: COPY FREEZE. The table is empty, and truncated in the same transaction" in " ".join(
        empty.split()
    )
    ask(conninfo, "INSERT INTO t SELECT n, 1, n FROM generate_series(1, 2000) AS n")
    held = run(*given).stdout
    assert "never analyzed" in held
    assert not any(word in held for word in ("about 0 rows", "FREEZE", "truncated"))
    assert "freezing: none. The table has rows" in run(*given, "--freeze").stdout


def test_the_result_names_the_server_and_what_was_refused(conninfo: str, tmp_path: Path) -> None:
    path, page = tmp_path / "rows.csv", tmp_path / "page.html"
    path.write_text("id,a,name\n1,1,x\n2,1,x\nx,1,x\n")
    ask(conninfo, "CREATE UNIQUE INDEX one ON t (name)")
    given = ["--indexes", "drop", "--rejects", str(tmp_path / "bad"), "--yes", "--html", str(page)]
    done = run("load", str(path), "t", *given, "-d", conninfo)
    assert done.returncode == 1
    words = done.stdout + done.stderr
    assert words.count("--resume public.t") == words.count("-d trouble --resume public.t") > 1
    text = page.read_text()
    assert f"refused, in {tmp_path}/bad" in text
    assert '<th scope="col" class="text">step</th>' in text


def test_what_was_sent_is_given_up_with_the_error(conninfo: str) -> None:
    """As many pieces as have refused records would stay in memory until garbage is collected."""

    def sent() -> Iterator[bytes]:
        yield b"x,1,x\n"

    parts = sent()
    kept = weakref.ref(parts)
    gc.disable()
    try:
        with open_session(conninfo) as session:
            try:
                copy(session, CopyTarget(schema="public", table="t", columns=["id"], format="csv"), parts)
            except BadRow as error:
                assert error.line == 1
            else:
                raise AssertionError("the record was not refused")
            del parts
            assert kept() is None
    finally:
        gc.enable()
