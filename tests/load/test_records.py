"""Records are found by their own count, whatever lines the server counts; refused ones are the file's own."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load.input.source import find_inputs
from pgsweep.load.input.split import read_first, splitter_for
from pgsweep.load.loading import load_files
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.load import LoadOutcome
from tests.fix_cli import run
from tests.fix_load import ask, refused, trouble_database

pytestmark = pytest.mark.one_server

IN_PIECES: dict[str, Any] = {"indexes": "drop", "piece_bytes": 4096, "jobs": 2}
AS_ONE: dict[str, Any] = {"single_transaction": True}


@pytest.fixture
def conninfo(server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with trouble_database(server, "CREATE TABLE p (id int, note text, qty int CHECK (qty < 1000))") as found:
        yield found


def load(conninfo: str, path: Path, rejects: Path | None = None, **options: Any) -> LoadOutcome:
    ask(conninfo, "TRUNCATE p")
    most = 1000 if rejects is not None else None
    given = LoadOptions(max_rejects=most, **options)
    outcome = load_files(conninfo, [str(path)], "p", given, rejects=rejects).outcome
    assert outcome is not None
    assert outcome.ended == "loaded"
    return outcome


def crlf_rows(count: int, bad: set[int]) -> str:
    rows = [f'{n},"memo {n}\nsecond line",{"bad" if n in bad else n}\r\n' for n in range(1, count + 1)]
    return "id,note,qty\r\n" + "".join(rows)


TEXTS = {
    "crlf rows, lf in quotes": ("x.csv", crlf_rows(6, {3}), [6]),
    "crlf rows, many": ("x.csv", crlf_rows(40, {1, 25, 26, 40}), [2, 50, 52, 80]),
    "lf rows, lf in quotes": ("x.csv", 'id,note,qty\n1,a,bad\n2,"x\ny",2\n3,b,3\n4,c,bad\n5,d,5\n', [2, 6]),
    "lf rows, cr in quotes": ("x.csv", 'id,note,qty\n1,"a\rb",1\n2,"x\r\ry",bad\n3,b,3\n4,c,bad\n', [3, 5]),
    "lf rows, crlf in quotes": ("x.csv", 'id,note,qty\n1,"a\r\nb",x\n2,"x\r\ny",2\n3,b,bad\n', [2, 6]),
    "cr rows": ("x.csv", 'id,note,qty\r1,"a\nb",1\r2,"x\ry",bad\r3,b,3\r4,c,bad\r', [3, 6]),
    "backslash newline": ("x.tsv", "1\ta\\\nb\t1\n2\ta\\\nb\tbad\n3\tc\t3\n4\ta\\\nb\tbad\n", [3, 6]),
    "backslash return": ("x.tsv", "1\ta\\\rb\t1\n2\ta\\\n\\\nb\tbad\n3\tc\t3\n4\ta\tbad\n", [2, 6]),
    "too many fields": ("x.csv", 'id,note,qty\n1,"a\n\nb",1,2\n2,"c\n",2\n3\n4,d,4\n', [2, 7]),
}


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("way", [IN_PIECES, AS_ONE], ids=["pieces", "one"])
def test_the_bad_records_of_text_and_only_those_are_refused(
    conninfo: str, tmp_path: Path, case: str, way: dict[str, Any]
) -> None:
    name, text, lines = TEXTS[case]
    path, rejects = tmp_path / name, tmp_path / "bad.csv"
    path.write_bytes(text.encode())
    # With the splitter's own view of the file as the truth.
    [entry] = find_inputs([str(path)], LoadOptions())
    head = read_first(entry, LoadOptions())
    ends = [0, *splitter_for(entry.format, LoadOptions(), head.terminator).ends(head.data).tolist()]
    sign = bytes([head.terminator])
    records = {
        text.encode()[:begin].count(sign) + 1: text.encode()[begin:end].rstrip(b"\r\n").decode()
        for begin, end in itertools.pairwise(ends)
    }
    outcome = load(conninfo, path, rejects, **way)
    assert refused(rejects) == [(line, records[line]) for line in lines]
    assert (outcome.rejected, outcome.rows) == (len(lines), len(records) - (name == "x.csv") - len(lines))
    assert ask(conninfo, "SELECT count(*) FROM p") == [(outcome.rows,)]
    # Without a file for them, the first of them is named.
    with pytest.raises(PgsweepError, match=f"line {lines[0]}[,:]"):
        load(conninfo, path, **way)


@pytest.mark.parametrize("way", [IN_PIECES, AS_ONE], ids=["pieces", "one"])
def test_json_and_parquet_are_refused_by_their_own_lines_and_rows(
    conninfo: str, tmp_path: Path, way: dict[str, Any]
) -> None:
    rejects = tmp_path / "bad.csv"
    rows = [
        {"id": n, "note": f"memo {n}\nsecond\nthird", "qty": "bad" if n in (25, 31) else str(n)}
        for n in range(1, 41)
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load(conninfo, path, rejects, **way).rows == 38
    assert refused(rejects) == [(n, json.dumps(rows[n - 1])) for n in (25, 31)]
    # A blank line after every fifth, and two that are not JSON.
    lines = [json.dumps(row) for row in rows]
    lines[2], lines[33] = '{"id": 3, "note": ', '["no object"]'
    path.write_text("".join(line + "\n" * (2 if n % 5 == 0 else 1) for n, line in enumerate(lines, 1)))
    found = load(conninfo, path, rejects, **way)
    assert (found.rows, found.rejected) == (36, 4)
    assert refused(rejects) == [(n + (n - 1) // 5, lines[n - 1]) for n in (3, 25, 31, 34)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert load(conninfo, path, rejects, **way).rows == 38
    assert [(n, json.loads(record)) for n, record in refused(rejects)] == [
        (n, {key: str(value) for key, value in rows[n - 1].items()}) for n in (25, 31)
    ]
    with pytest.raises(PgsweepError, match="row 25, column qty"):
        load(conninfo, path, **way)


@pytest.mark.parametrize("way", [IN_PIECES, AS_ONE], ids=["pieces", "one"])
def test_constraints_keys_and_triggers_refuse_records_by_themselves(
    conninfo: str, tmp_path: Path, way: dict[str, Any]
) -> None:
    one = way is AS_ONE
    ask(
        conninfo,
        """CREATE TABLE q (id int PRIMARY KEY); INSERT INTO q VALUES (1), (2), (3);
        ALTER TABLE p ADD FOREIGN KEY (id) REFERENCES q, ADD UNIQUE (note);
        CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          IF NEW.qty = 13 THEN RAISE EXCEPTION 'no thirteen' USING ERRCODE = 'U0013'; END IF;
          RETURN NEW; END $$;
        """
        # Where a trigger fires, a load is one transaction.
        + ("CREATE TRIGGER guard BEFORE INSERT ON p FOR EACH ROW EXECUTE FUNCTION guard()" if one else ""),
    )
    records = [
        "1,a,1", "9,b,1", "2,a,1", "3,c,5000", "1,d,13", "2,e,2", "x,f,1", "3,\"g\nh\",3", "8,i,1", "1,a,1",
    ]  # fmt: skip
    bad = [1, 2, 3, *([4] if one else []), 6, 8, 9]
    path, rejects = tmp_path / "x.csv", tmp_path / "bad.csv"
    path.write_text("id,note,qty\n" + "\n".join(records) + "\n")
    outcome = load(conninfo, path, rejects, **{**way, "indexes": "keep"})
    assert (outcome.rows, outcome.rejected) == (10 - len(bad), len(bad))
    assert [record for _, record in refused(rejects)] == [records[n] for n in bad]
    assert [line for line, _ in refused(rejects)] == [n + 2 + (n > 7) for n in bad]
    assert ask(conninfo, "SELECT note FROM p ORDER BY note") == [
        (note,) for note in (["a", "e", "g\nh"] if one else ["a", "d", "e", "g\nh"])
    ]


def test_a_value_too_long_for_an_index_is_a_refused_record(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "CREATE INDEX ON p (note)")
    long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9000))
    path, rejects = tmp_path / "x.csv", tmp_path / "bad.csv"
    path.write_text(f"id,note,qty\n1,a,1\n2,{long},2\n3,c,3\n")
    assert load(conninfo, path, rejects, indexes="keep", single_transaction=True).rows == 2
    assert [line for line, _ in refused(rejects)] == [3]
    with pytest.raises(PgsweepError, match="line 3: index row"):
        load(conninfo, path, indexes="keep", single_transaction=True)


@pytest.mark.parametrize("bad", ["x", "5000"], ids=["type", "check"])
def test_refused_records_cost_what_stands_around_them(conninfo: str, tmp_path: Path, bad: str) -> None:
    """Each once cost all of its piece: 3,000 of 100,000 did not end within minutes, and grew the table."""
    path, rejects = tmp_path / "x.csv", tmp_path / "bad.csv"
    rows = 100_000
    lines = [f"{n},some words of a note,{bad if n % 100 == 50 else 7}\n" for n in range(rows)]
    clean = tmp_path / "clean.csv"
    clean.write_text("id,note,qty\n" + "".join(lines).replace(f",{bad}\n", ",7\n"))
    path.write_text("id,note,qty\n" + "".join(lines))
    given: dict[str, Any] = {"indexes": "drop", "jobs": 1, "piece_bytes": 1 << 20}
    load(conninfo, clean, **given)
    [(size,)] = ask(conninfo, "SELECT pg_relation_size('p')")
    ask(conninfo, "TRUNCATE p")
    options = LoadOptions(max_rejects=5000, **given)
    outcome = load_files(conninfo, [str(path)], "p", options, rejects=rejects).outcome
    assert outcome is not None
    assert (outcome.rows, outcome.rejected) == (rows * 99 // 100, rows // 100)
    [(grown,)] = ask(conninfo, "SELECT pg_relation_size('p')")
    # A type refuses before anything is written; a check needs rows to be written, and undone.
    assert grown < size * (1.3 if bad == "x" else 3.0)


@pytest.mark.parametrize("way", [IN_PIECES, AS_ONE], ids=["pieces", "one"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("bad", [b"\0b", b"\xff", b"\xe3\x82"], ids=["null", "byte", "half"])
def test_bytes_that_are_no_text_are_those_of_their_record(
    conninfo: str, tmp_path: Path, way: dict[str, Any], end: bytes, bad: bytes
) -> None:
    """After a carriage return the server looks at the next byte, and names the line of the record before."""
    records = [b"%d,note,%d" % (n, n) if n % 50 != 21 else b"%d,%s,%d" % (n, bad, n) for n in range(200)]
    records[71:72] = [bad + b",x,1"]
    path, rejects = tmp_path / "x.csv", tmp_path / "bad.csv"
    path.write_bytes(end.join([b"id,note,qty", *records]) + end)
    outcome = load(conninfo, path, rejects, **way)
    assert (outcome.rows, outcome.rejected, rejects.read_bytes().count(b"note")) == (196, 4, 0)
    path.write_bytes(end.join([b"id,note,qty", *records[50:]]) + end)
    with pytest.raises(PgsweepError, match="line 23: invalid byte sequence"):
        load(conninfo, path, **way)


def test_lines_end_as_the_first_one_does(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for text, rows in (
        ('id,note,qty\r1,"a\nb",1\r2,c,2\r', 2),
        ('id,note,qty\r\n1,"a\nb",1\r\n2,c,2\r\n', 2),
        ('id,note,qty\n1,"a\rb",1\n2,c,2', 2),
        ('"id","note","qty"\r1,"' + "x\n" * 600_000 + '",1\r2,c,2', 2),
        ('1,"' + "long\n" * 300_000 + '",1\n2,c,2\n', 2),
        ("id,note,qty\n", 0),
        ("id,note,qty", 0),
    ):
        path.write_bytes(text.encode())
        assert load(conninfo, path).rows == rows, text[:40]
    # Where a header has no end, nothing else is loaded, and that is said.
    path.write_text('id,size (")\n1,0.5\n2,1.0\n')
    with pytest.raises(PgsweepError, match=r"the header of .* reaches the end of the file"):
        load(conninfo, path, header=True, columns=["id", "note"])
    path.write_text('id,size (")\n1,0.5\n2,1.0"\n3,1.5\n')
    with pytest.raises(PgsweepError, match=r"the header of .* goes on over more lines"):
        load(conninfo, path, header=True, columns=["id", "note"])
    path.write_text('id,note,"qty\n1,a,1\n')
    with pytest.raises(PgsweepError, match=r"reaches the end of the file|has names of columns"):
        load(conninfo, path, header=True)


PAIRS = {
    "SJIS": "表ソ能ー",
    "BIG5": "功許蓋",
    "GBK": "乗俓丂",
    "GB18030": "乗俓㐀",
    "UHC": "갂뙠",
}


@pytest.mark.parametrize("encoding", PAIRS)
def test_bytes_of_characters_that_look_like_others_are_text(
    conninfo: str, tmp_path: Path, encoding: str
) -> None:
    codec = {"SJIS": "cp932", "UHC": "cp949"}.get(encoding, encoding)
    words = [word for word in PAIRS[encoding] for _ in range(2)]
    rejects = tmp_path / "bad.csv"
    path = tmp_path / "x.tsv"
    lines = [f"{n}\t{word}\t{n}\n" for n, word in enumerate(words)]
    lines += ["99\tplain\t7\n", f"x\t{words[0]}\t1\n"]
    path.write_bytes("".join(lines).encode(codec))
    outcome = load(conninfo, path, rejects, encoding=encoding, **IN_PIECES)
    assert (outcome.rows, outcome.rejected) == (len(words) + 1, 1)
    assert ask(conninfo, "SELECT note FROM p ORDER BY id, note")[: len(words)] == [(word,) for word in words]
    assert refused(rejects, codec) == [(len(words) + 2, f"x\t{words[0]}\t1")]
    # With a quote or a delimiter that may be such a byte.
    path = tmp_path / "x.csv"
    path.write_bytes("".join(f"{n}|~{word}~|{n}\n" for n, word in enumerate(words)).encode(codec))
    load(conninfo, path, encoding=encoding, delimiter="|", quote="~")
    assert ask(conninfo, "SELECT note FROM p ORDER BY id") == [(word,) for word in words]


def test_refused_records_are_the_bytes_of_the_file(conninfo: str, tmp_path: Path) -> None:
    path, rejects = tmp_path / "x.csv", tmp_path / "bad.csv"
    path.write_bytes("id,note\n1,Müller\nx,Größe\n3,Jörg\n".encode("latin-1"))
    load(conninfo, path, rejects, encoding="LATIN1")
    lines = rejects.read_bytes().splitlines()
    assert lines[1].endswith('"x,Größe"'.encode("latin-1"))
    path.write_bytes(b"id,note\n1,\xff\xfe\n2,a\n")
    load(conninfo, path, rejects)
    assert rejects.read_bytes().splitlines()[1].endswith(b'"1,\xff\xfe"')
    path.write_bytes('id,note\nx,"я, ""q"""\n'.encode("cp1251"))
    load(conninfo, path, rejects, encoding="WIN1251")
    assert 'x,""я, """"q"""""""'.encode("cp1251") in rejects.read_bytes()


def test_nothing_is_written_over_an_input(conninfo: str, tmp_path: Path) -> None:
    path, other = tmp_path / "x.csv", tmp_path / "other.csv"
    path.write_text("id,note,qty\n1,a,1\n")
    other.hardlink_to(path)
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    for output in (path, other, link):
        for option in ("--rejects", "--journal", "--out"):
            done = run("load", str(path), "p", "-d", conninfo, "--yes", option, str(output))
            assert done.returncode == 2, option
            assert "is a file that is loaded" in done.stderr
        with pytest.raises(UsageError, match="is a file that is loaded"):
            load(conninfo, path, output)
    assert path.read_text() == "id,note,qty\n1,a,1\n"
    binary = tmp_path / "x.copy"
    binary.write_bytes(b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff")
    with pytest.raises(UsageError, match="do not take --rejects"):
        load(conninfo, binary, tmp_path / "bad.csv")


def test_a_compressed_file_is_known_by_its_first_bytes(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(gzip.compress(b"id,note,qty\n1,a,1\n2,b,2\n"))
    assert load(conninfo, path).rows == 2
    with pa.CompressedOutputStream(str(path), "zstd") as out:
        out.write(b"id,note,qty\n1,a,1\n")
    assert load(conninfo, path).rows == 1
    path.write_bytes(lzma.compress(b"id,note,qty\n1,a,1\n2,b,2\n3,c,3\n"))
    assert load(conninfo, path).rows == 3
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(gzip.compress(b"id,note,qty\n")), daemon=True)
    writer.start()
    with pytest.raises(PgsweepError, match=r"is compressed \(gz\)"):
        load(conninfo, pipe)
    writer.join()


def test_a_server_that_tells_of_many_rows_that_it_skips(conninfo: str, tmp_path: Path) -> None:
    if ask(conninfo, "SELECT current_setting('server_version_num')::int < 170000")[0][0]:
        pytest.skip("COPY skips no rows before PostgreSQL 17")
    path, count = tmp_path / "x.csv", 10_000
    path.write_text("".join(f"{'x' * 50}{n},note,1\n" for n in range(count)) + "1,a,1\n")
    given = LoadOptions(header=False, max_rejects=count, columns=["id", "note", "qty"])
    outcome = load_files(conninfo, [str(path)], "p", given, rejects=tmp_path / "bad").outcome
    assert outcome is not None
    assert (outcome.rows, outcome.rejected) == (1, count)
    assert len((tmp_path / "bad").read_text().splitlines()) == count + 1


def test_a_trigger_that_says_much(conninfo: str, tmp_path: Path) -> None:
    ask(
        conninfo,
        "CREATE FUNCTION loud() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE NOTICE 'row % %', NEW.id, repeat('x', 200); RETURN NEW; END$$;"
        "CREATE TRIGGER loud BEFORE INSERT ON p FOR EACH ROW EXECUTE FUNCTION loud()",
    )
    path, count = tmp_path / "x.csv", 10_000
    path.write_text("".join(f"{n},{'a' * 200},1\n" for n in range(count)))
    assert load(conninfo, path, header=False).rows == count


CHECKED = """
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE checked (id int GENERATED BY DEFAULT AS IDENTITY, must text NOT NULL,
    kind text DEFAULT 'a' NOT NULL CHECK (kind <> '%'), size positive,
    ratio int CONSTRAINT "a ratio" CHECK (100 / ratio > 1),
    twice int GENERATED ALWAYS AS (size * 2) STORED, CHECK (size <> 7 OR must = 'seven'));
"""


@pytest.mark.parametrize("how", [IN_PIECES, AS_ONE], ids=["pieces", "one"])
@pytest.mark.parametrize("more", ["", "ALTER TABLE checked ADD CHECK (twice < 100)", "REVOKE TEMP"])
def test_what_a_check_refuses(
    server: Cluster, conninfo: str, tmp_path: Path, how: dict[str, Any], more: str
) -> None:
    ask(conninfo, CHECKED + more.replace("REVOKE TEMP", ""))
    bad = {3: "1,,a,1,1", 5: "2,x,%,1,1", 9: "3,x,a,0,1", 14: "4,x,a,1,0", 15: "5,x,a,7,1", 20: "6,x,b,1,99"}
    if "twice" in more:
        bad[22] = "7,x,b,50,1"
    lines = [f"{n},text {n},k,{1 + n % 6},{1 + n % 40}" for n in range(2, 42)]
    for line, text in bad.items():
        lines[line - 2] = text
    path = tmp_path / "x.csv"
    path.write_text("id,must,kind,size,ratio\n" + "\n".join(lines) + "\n")
    place = conninfo
    if more == "REVOKE TEMP":
        ask(conninfo, "CREATE ROLE bare LOGIN; GRANT INSERT ON checked TO bare")
        database = ask(conninfo, "SELECT current_database()")[0][0]
        ask(conninfo, f'REVOKE TEMP ON DATABASE "{database}" FROM PUBLIC')
        place = f"{conninfo} user=bare"
    try:
        given = LoadOptions(max_rejects=100, **how)
        outcome = load_files(place, [str(path)], "checked", given, rejects=tmp_path / "bad").outcome
    finally:
        if more == "REVOKE TEMP":
            ask(conninfo, "DROP OWNED BY bare; DROP ROLE bare")
    assert outcome is not None
    assert (outcome.rows, outcome.rejected) == (40 - len(bad), len(bad))
    found = (tmp_path / "bad").read_text().splitlines()[1:]
    assert [int(line.split(",")[1]) for line in found] == sorted(bad)
    for name in ("must", "checked_kind_check", "positive", "division by zero", "checked_check"):
        assert name in " ".join(found)


@pytest.mark.parametrize("how", [IN_PIECES, AS_ONE], ids=["pieces", "one"])
def test_a_check_that_is_not_enforced_refuses_nothing(
    conninfo: str, tmp_path: Path, how: dict[str, Any]
) -> None:
    if ask(conninfo, "SELECT current_setting('server_version_num')::int < 180000")[0][0]:
        pytest.skip("every check is enforced before PostgreSQL 18")
    ask(conninfo, "ALTER TABLE p ADD CHECK (id < 3) NOT ENFORCED")
    path = tmp_path / "x.csv"
    path.write_text("id,note,qty\n1,a,2000\n5,b,1\n7,c,2\n")
    given = LoadOptions(max_rejects=5, **how)
    outcome = load_files(conninfo, [str(path)], "p", given, rejects=tmp_path / "bad").outcome
    assert outcome is not None
    assert (outcome.rows, outcome.rejected) == (2, 1)


BY_TYPES = {"regclass": "nosuch", "tsquery": "a &", "jsonpath": "$.", "regproc": "lower"}
"""Values that these types refuse as a name that there is not, or as bad syntax: with codes of statements."""


@pytest.mark.parametrize("way", [IN_PIECES, AS_ONE], ids=["pieces", "one"])
@pytest.mark.parametrize("kind", BY_TYPES)
def test_a_value_that_a_type_refuses_is_of_a_record(
    conninfo: str, tmp_path: Path, kind: str, way: dict[str, Any]
) -> None:
    ask(conninfo, f"ALTER TABLE p DROP qty, ALTER note TYPE {kind} USING NULL")
    path = tmp_path / "x.csv"
    path.write_text(f"id,note\n1,\n2,{BY_TYPES[kind]}\n3,\n")
    assert load(conninfo, path, tmp_path / "bad", **way).rows == 2
    assert refused(tmp_path / "bad") == [(3, f"2,{BY_TYPES[kind]}")]
    with pytest.raises(PgsweepError, match=r"x\.csv, line 3, column note: "):
        load(conninfo, path, **way)
    assert ask(conninfo, "SELECT count(*) FROM p") == [(0,)]


def test_a_binary_value_of_another_length_is_of_a_row(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "CREATE TABLE wide (id bigint)")
    path = tmp_path / "x.copy"
    path.write_bytes(b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\1\0\0\0\4\0\0\0\1\xff\xff")
    with pytest.raises(PgsweepError, match=r"x\.copy, row 1, column id: insufficient data left") as failed:
        load_files(conninfo, [str(path)], "wide", LoadOptions())
    assert "--rejects" not in (failed.value.hint or "")


def test_a_record_whose_line_ends_otherwise_is_refused_alone(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"x,a,1\n2,b,2\r\n3,c,3\n4,d,4\r\n5,e,5\n")
    for way in (IN_PIECES, AS_ONE):
        assert load(conninfo, path, tmp_path / "bad", header=False, **way).rows == 2
        assert refused(tmp_path / "bad") == [(1, "x,a,1"), (2, "2,b,2"), (4, "4,d,4")]
    path.write_bytes(b"1,a,1\r\n2,b,2\r\n3,c,3\n")
    assert load(conninfo, path, tmp_path / "bad", header=False).rows == 2
    assert refused(tmp_path / "bad") == [(3, "3,c,3")]


def test_the_first_record_may_be_in_another_encoding(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"1,caf\xe9,1\n2,b,2\n")
    assert load(conninfo, path, tmp_path / "bad", header=False).rows == 1
    assert refused(tmp_path / "bad", "latin1") == [(1, "1,caf\xe9,1")]


def test_the_reason_is_not_cut_at_what_is_no_line_end(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("1\ta\t1\n\fz\ta\t1\n\\x7a\ta\t1\n", encoding="utf-8")
    assert load(conninfo, path, tmp_path / "bad", header=False).rows == 1
    written = (tmp_path / "bad").read_text(encoding="utf-8")
    assert 'integer: ""\fz"""' in written
    assert 'integer: ""z"""' in written


def test_an_escaped_delimiter_in_the_first_record(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("1\ta\\\nb\\\tc\t\\N\n")
    assert load(conninfo, path).rows == 1
    assert ask(conninfo, "SELECT note FROM p") == [("a\nb\tc",)]


def test_an_xz_file_is_read_to_its_end(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv.xz"
    first, second = lzma.compress(b"id,note,qty\n1,a,1\n"), lzma.compress(b"2,b,2\n")
    for between in (b"", bytes(4), bytes(4 << 18)):
        path.write_bytes(first + between + second + between)
        assert load(conninfo, path).rows == 2
    for end, words in ((b"junk", "cannot be read to its end"), (second[:-9], "it is cut short")):
        path.write_bytes(first + end)
        with pytest.raises(PgsweepError, match=words):
            load(conninfo, path)
        assert ask(conninfo, "SELECT count(*) FROM p") == [(0,)]
