"""Formats, compression, headers, encodings, several files, standard input, bad records: on a real server."""

from __future__ import annotations

import csv
import gzip
import lzma
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgsweep.errors import MissingAbility, PgsweepError, UsageError
from pgsweep.load.compare import COPY, TOGETHER, compare_practices
from pgsweep.load.input.source import find_inputs
from pgsweep.load.input.split import read_first
from pgsweep.load.loading import load_files, plan_load, resume, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.records.load import LoadOutcome
from tests.fix_cli import run
from tests.fix_cluster import own_database
from tests.fix_load import facts_of, leftovers

pytestmark = pytest.mark.one_server

TABLE = """
CREATE TABLE t (id int PRIMARY KEY, name text, price numeric CHECK (price < 1000), tags text[], doc jsonb,
  at timestamptz, raw bytea);
CREATE INDEX t_name ON t (name);
"""


@pytest.fixture
def conninfo(server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with own_database(server, "formats", TABLE) as found:
        yield found


def load(conninfo: str, *files: Path | str, rejects: Path | None = None, **options: Any) -> LoadOutcome:
    """Load into an emptied table, with a journal and several pieces."""
    ask(conninfo, "TRUNCATE t")
    return more(conninfo, *files, rejects=rejects, **options)


def more(conninfo: str, *files: Path | str, rejects: Path | None = None, **options: Any) -> LoadOutcome:
    given = LoadOptions(**{"indexes": "drop", "piece_bytes": 50, "jobs": 2, **options})
    outcome = load_files(conninfo, [str(file) for file in files], "t", given, rejects=rejects).outcome
    assert outcome is not None
    assert outcome.ended == "loaded"
    assert outcome.unchanged
    return outcome


def ask(conninfo: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def test_files_of_every_format_bring_the_same_rows(conninfo: str, tmp_path: Path) -> None:
    rows = [(n, f'n"{n}"\n,' if n % 3 else None, Decimal(n) / 4) for n in range(1, 60)]
    wanted = [(n, name, price) for n, name, price in rows]
    plain = tmp_path / "rows.csv"
    with plain.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["price", "id", "NAME"])
        writer.writerows([price, n, name] for n, name, price in rows)
    data = plain.read_bytes()
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(data))
    (tmp_path / "rows.csv.xz").write_bytes(lzma.compress(data))
    with pa.CompressedOutputStream(str(tmp_path / "rows.csv.zst"), "zstd") as out:
        out.write(data)
    (tmp_path / "crlf.csv").write_bytes(b"\xef\xbb\xbf" + b"id;price\r\n1;2.5\r\n2;3\r\n")
    tsv = "".join(
        f"{n}\t{'' if name is None else name.replace(chr(10), chr(92) + 'n')}\t{price}\n".replace(
            f"{n}\t\t", f"{n}\t\\N\t"
        )
        for n, name, price in rows
    )
    (tmp_path / "rows.tsv").write_text(tsv, encoding="utf-8")
    import json

    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"id": n, "name": name, "price": float(price)}) + "\n" for n, name, price in rows)
    )
    table = pa.table(
        {"id": [n for n, _, _ in rows], "name": [m for _, m, _ in rows], "price": [p for *_, p in rows]}
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    for suffix in ("csv", "csv.gz", "csv.xz", "csv.zst", "tsv", "jsonl", "parquet"):
        name = f"rows.{suffix}"
        outcome = load(
            conninfo, tmp_path / name, columns=["id", "name", "price"] if suffix == "tsv" else None
        )
        assert outcome.rows == len(rows), name
        assert ask(conninfo, "SELECT id, name, price FROM t ORDER BY id") == wanted, name
    assert load(conninfo, tmp_path / "crlf.csv", delimiter=";").rows == 2
    assert ask(conninfo, "SELECT sum(price) FROM t") == [(Decimal("5.5"),)]
    ask(conninfo, "TRUNCATE t; INSERT INTO t (id, name) SELECT g, 'b' FROM generate_series(1, 5) g")
    with (
        psycopg.connect(conninfo) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY t TO STDOUT (FORMAT binary)") as copy,
    ):
        (tmp_path / "rows.copy").write_bytes(b"".join(bytes(block) for block in copy))
    assert load(conninfo, tmp_path / "rows.copy").rows == 5
    assert leftovers(conninfo) == []


def test_values_of_json_and_parquet_keep_their_text(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"id": 1, "name": "2020-01-01T00:00:00Z", "price": 0.10, '
        '"tags": ["a,\\"b", null, "{}"], "doc": {"k": [1.50]}}\n'
        '\n{"id": 2, "name": "", "doc": null, "tags": [], "price": null}\n'
        '{"id": 3, "name": null, "doc": "text"}\n'
    )
    assert load(conninfo, path, columns=["id", "name", "price", "tags", "doc"]).rows == 3
    assert ask(conninfo, "SELECT name, price::text, tags, doc::text FROM t ORDER BY id") == [
        ("2020-01-01T00:00:00Z", "0.10", ['a,"b', None, "{}"], '{"k": [1.50]}'),
        ("", None, [], None),
        (None, None, None, '"text"'),
    ]
    at = datetime(2024, 5, 1, 12, 30, 0, 123456, tzinfo=UTC)
    table = pa.table(
        {
            "id": [1, 2],
            "at": [at, None],
            "raw": [b"\x00\xff", None],
            "tags": [["x", None], None],
            "name": ["", None],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    assert load(conninfo, tmp_path / "x.parquet").rows == 2
    assert ask(
        conninfo, "SELECT at = '2024-05-01 12:30:00.123456+00', raw, tags, name FROM t ORDER BY id"
    ) == [
        (True, b"\x00\xff", ["x", None], ""),
        (None, None, None, None),
    ]


def test_values_within_arrays_and_structs_keep_their_text(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "ALTER TABLE t ADD digits numeric[], ADD docs jsonb[], ADD raws bytea[]")
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"id": 1, "digits": [[0.12345678901234567890123, 12345678901234567890.123], [null, 1.50]], '
        '"docs": [{"k": 0.12345678901234567890123, "s": "a\\"b"}, 1.50, null], '
        '"tags": ["\u00e9\\\\", " [x] ", "{\\"", null]}\n'
    )
    assert load(conninfo, path, columns=["id", "digits", "docs", "tags"]).rows == 1
    assert ask(conninfo, "SELECT digits::text, docs[1]::text, docs[2]::text, docs[3], tags FROM t") == [
        (
            "{{0.12345678901234567890123,12345678901234567890.123},{NULL,1.50}}",
            '{"k": 0.12345678901234567890123, "s": "a\\"b"}',
            "1.50",
            None,
            ["é\\", " [x] ", '{"', None],
        )
    ]
    exact = Decimal("12345678901234567890.50")
    table = pa.table(
        {
            "id": [1],
            "raws": pa.array([[b"abc", b"\x00\\", None]], pa.list_(pa.binary())),
            "digits": pa.array([[exact]], pa.list_(pa.decimal128(22, 2))),
            "doc": pa.array(
                [{"p": exact, "s": 'é"', "l": [1.5, None]}],
                pa.struct({"p": pa.decimal128(22, 2), "s": pa.string(), "l": pa.list_(pa.float64())}),
            ),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    assert load(conninfo, tmp_path / "x.parquet").rows == 1
    assert ask(conninfo, "SELECT raws, digits, doc::text FROM t") == [
        ([b"abc", b"\x00\\", None], [exact], '{"l": [1.5, null], "p": 12345678901234567890.50, "s": "é\\""}')
    ]
    for value, kind, words in (
        (b"abc", pa.binary(), "JSON has no binary values"),
        (float("nan"), pa.float64(), "nan is not a number of JSON"),
    ):
        odd = pa.table({"id": [1], "doc": pa.array([{"v": value}], pa.struct({"v": kind}))})
        pq.write_table(odd, tmp_path / "odd.parquet")
        with pytest.raises(PgsweepError, match=f"column doc: {words}"):
            load(conninfo, tmp_path / "odd.parquet")


def test_strings_of_json_arrays_and_maps_and_durations_of_parquet_are_kept(
    conninfo: str, tmp_path: Path
) -> None:
    ask(conninfo, "CREATE DOMAIN documents AS jsonb[]")
    ask(conninfo, "ALTER TABLE t ADD docs jsonb[], ADD old json[], ADD own documents, ADD lasts interval[]")
    ask(conninfo, "ALTER TABLE t ADD last interval")
    array = '["1", 1, "null", null, "a\\"b\\\\", {"k": "1"}, true]'
    path = tmp_path / "x.jsonl"
    path.write_text(
        f'{{"id": 1, "docs": {array}, "old": {array}, "own": {array}, "tags": ["1", 1, "null"]}}\n'
    )
    assert load(conninfo, path, columns=["id", "docs", "old", "own", "tags"]).rows == 1
    elements = ['"1"', "1", '"null"', None, '"a\\"b\\\\"', '{"k": "1"}', "true"]
    assert ask(conninfo, "SELECT docs::text[], old::text[], own::text[], tags FROM t") == [
        (elements, elements, elements, ["1", "1", "null"])
    ]
    micro = timedelta(microseconds=1)
    lasts = [micro, -micro, timedelta(days=300_000) + micro, timedelta(days=-2, hours=3), None]
    table = pa.table(
        {
            "id": range(len(lasts)),
            "last": pa.array(lasts, pa.duration("us")),
            "lasts": pa.array([lasts] * len(lasts), pa.list_(pa.duration("us"))),
            "tags": pa.array([[("k", "v")]] * len(lasts), pa.map_(pa.string(), pa.string())),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    assert load(conninfo, tmp_path / "x.parquet").rows == len(lasts)
    rows = ask(conninfo, "SELECT last, lasts, tags FROM t ORDER BY id")
    assert rows == [(last, lasts, [["k", "v"]]) for last in lasts]


def test_values_of_parquet_are_the_same_alone_and_in_arrays(conninfo: str, tmp_path: Path) -> None:
    """Of each type the text that is written: Python's types hold neither nanoseconds nor single precision."""
    early = [datetime(1960, 1, 1, tzinfo=UTC), datetime(1880, 1, 1, tzinfo=UTC), None]
    some = [UUID(int=5), UUID(int=2**127), None]
    zoned = pa.timestamp("us", tz="Africa/Monrovia")  # 44 min 30 s behind UTC until 1972
    raws = [b"abc", b"\\x41", None]
    kinds: dict[str, tuple[pa.Array, list[Any]]] = {
        "timestamptz": (pa.array(early, zoned), early),
        "uuid": (pa.array([one and one.bytes for one in some], pa.uuid()), some),
        "bytea": (pa.array(raws, pa.binary_view()), raws),
        "float8": (pa.array([1.1, -0.5, None], pa.float32()), [1.1, -0.5, None]),
        "interval": (
            pa.array([1_000_001_000, -86_399 * 10**9, None]).cast(pa.duration("ns")),
            [timedelta(seconds=1, microseconds=1), -timedelta(seconds=86_399), None],
        ),
        "timestamp": (
            pa.array([1_577_836_800_123_456_000, 0, None]).cast(pa.timestamp("ns")),
            [datetime(2020, 1, 1, 0, 0, 0, 123456), datetime(1970, 1, 1), None],
        ),
    }
    table, columns = {"id": pa.array([1, 2, 3])}, []
    for number, (kind, (array, _)) in enumerate(kinds.items()):
        columns += [f"ADD one_{number} {kind}", f"ADD many_{number} {kind}[]"]
        table[f"one_{number}"] = array
        table[f"many_{number}"] = pa.ListArray.from_arrays([0, 3, 3, 3], array)
    # As some writers have them: 16 bytes that do not say what they are.
    columns.append("ADD plain uuid")
    table["plain"] = pa.array([one and one.bytes for one in some], pa.binary(16))
    table["doc"] = pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int64()))
    ask(conninfo, f"ALTER TABLE t {', '.join(columns)}")
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    assert load(conninfo, tmp_path / "x.parquet").rows == 3
    for number, (kind, (_, values)) in enumerate(kinds.items()):
        rows = ask(conninfo, f"SELECT one_{number}, many_{number} FROM t ORDER BY id")
        assert [row[0] for row in rows] == values, kind
        assert [row[1] for row in rows] == [values, [], []], kind
    assert ask(conninfo, "SELECT plain, doc FROM t ORDER BY id") == [
        (some[0], {"k": 1, "l": None}), (some[1], {}), (None, None)
    ]  # fmt: skip
    ask(conninfo, "CREATE TYPE pair AS (x int, y int); ALTER TABLE t ADD two pair")
    pq.write_table(pa.table({"id": [1], "two": [{"x": 1, "y": 2}]}), tmp_path / "x.parquet")
    with pytest.raises(PgsweepError, match=r"cannot be loaded into the composite type public\.pair"):
        load(conninfo, tmp_path / "x.parquet")


def test_json_lines_with_a_byte_order_mark_and_empty_arrays_in_arrays(conninfo: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('\ufeff{"id": 1, "tags": [[], []]}\n{"id": 2, "tags": [["a"]]}\n')
    assert load(conninfo, tmp_path / "x.jsonl").rows == 2
    assert ask(conninfo, "SELECT id, tags FROM t ORDER BY id") == [(1, []), (2, [["a"]])]


@pytest.mark.parametrize(
    "value",
    [b'"\xff"', b'["\xff"]', b'"\\ud800"', b"[" * 5000 + b"]" * 5000],
    ids=["text", "array", "half", "deep"],
)
def test_json_that_cannot_be_decoded_is_named_with_its_line(
    conninfo: str, tmp_path: Path, value: bytes
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id": 1, "tags": null}\n{"id": 2, "tags": ' + value + b"}\n")
    with pytest.raises(PgsweepError, match=r"x\.jsonl, line 2"):
        load(conninfo, path, columns=["id", "tags"])
    assert ask(conninfo, "SELECT count(*) FROM t") == [(0,)]


def test_several_files_and_patterns(conninfo: str, tmp_path: Path) -> None:
    for part in range(3):
        (tmp_path / f"part{part}.csv").write_text(
            "id,name\n" + "".join(f"{part}{n},x\n" for n in range(10, 30))
        )
    assert load(conninfo, tmp_path / "part*.csv").rows == 60
    (tmp_path / "other.csv").write_text("name,id\nx,1\n")
    with pytest.raises(UsageError, match="different columns"):
        load(conninfo, tmp_path / "part*.csv", tmp_path / "other.csv")
    with pytest.raises(UsageError, match="no file"):
        load(conninfo, tmp_path / "none*.csv")


def test_encodings_and_spellings_of_null(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes("id,name\n1,Müller\n2,NA\n3,\n".encode("latin-1"))
    load(conninfo, path, encoding="LATIN1", null="NA")
    assert ask(conninfo, "SELECT name FROM t ORDER BY id") == [("Müller",), (None,), ("",)]
    before = facts_of(conninfo, "t")
    with pytest.raises(PgsweepError, match=r"line 2.*invalid byte sequence"):
        load(conninfo, path)
    assert facts_of(conninfo, "t") == before
    path.write_text('id,name\n1,""\n')
    load(conninfo, path, empty_is_null=True)
    assert ask(conninfo, "SELECT name FROM t") == [(None,)]


def test_headers_that_do_not_fit_are_refused(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,nme\n1,a\n")
    with pytest.raises(UsageError, match="has names of columns, and also other fields: nme"):
        load(conninfo, path)
    with pytest.raises(UsageError, match="does not have: nme"):
        load(conninfo, path, header=True)
    with pytest.raises(UsageError, match="2 fields, the table 7 columns"):
        path.write_text("1,a\n")
        load(conninfo, path)
    assert load(conninfo, path, columns=["id", "name"]).rows == 1


@pytest.mark.parametrize("single", [False, True])
def test_refused_records_go_to_a_file(conninfo: str, tmp_path: Path, single: bool) -> None:
    path, rejects = tmp_path / "x.csv", tmp_path / "bad.csv"
    lines = [f'{n},"name\n{n}",1' for n in range(1, 101)]
    lines[10] = "x,y,1"
    lines[11] = "x,y,2"
    lines[12] = "x,y,3"
    lines[50] = "51,too many,1,2"
    lines[70] = "71,too dear,5000"
    path.write_text("id,name,price\n" + "\n".join(lines) + "\n")
    piece = {"piece_bytes": 400, "jobs": None, "single_transaction": True} if single else {"piece_bytes": 400}
    outcome = load(conninfo, path, rejects=rejects, max_rejects=10, **piece)
    assert (outcome.rows, outcome.rejected) == (95, 5)
    with rejects.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["record"] for row in found] == [
        "x,y,1",
        "x,y,2",
        "x,y,3",
        "51,too many,1,2",
        "71,too dear,5000",
    ]
    assert [int(row["line"]) for row in found] == [22, 23, 24, 99, 138]
    assert "t_price_check" in found[4]["reason"]
    assert ask(conninfo, "SELECT count(*) FROM t WHERE id IN (11, 12, 13, 51, 71)") == [(0,)]
    before = facts_of(conninfo, "t")
    rejects.unlink()
    with pytest.raises(PgsweepError, match="more than 2 records are refused") as failed:
        load(conninfo, path, rejects=rejects, max_rejects=2, **piece)
    assert str(rejects) in (failed.value.hint or "")
    with rejects.open(newline="") as file:
        assert {row["record"] for row in csv.DictReader(file)} >= {"x,y,1", "x,y,2", "x,y,3"}
    assert ask(conninfo, "SELECT count(*) FROM t") == [(0,)]
    assert facts_of(conninfo, "t") == before
    assert leftovers(conninfo) == []


def test_a_damaged_or_growing_file_undoes_the_load(conninfo: str, tmp_path: Path) -> None:
    data = b"id,name\n" + b"".join(b"%d,%s\n" % (n, os.urandom(20).hex().encode()) for n in range(5000))
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(data)[:-1000])
    cut_zst = tmp_path / "cut.csv.zst"
    with pa.CompressedOutputStream(str(cut_zst), "zstd") as out:
        out.write(data)
    cut_zst.write_bytes(cut_zst.read_bytes()[:-1000])
    quoted = tmp_path / "quoted.csv"
    quoted.write_bytes(data + b'5000,"open\n')
    before = facts_of(conninfo, "t")
    for path, words in (
        (cut, "cannot be read to its end"),
        (cut_zst, "end"),
        (quoted, "ends within a record"),
    ):
        with pytest.raises(PgsweepError, match=words):
            load(conninfo, path, piece_bytes=20_000)
        assert ask(conninfo, "SELECT count(*) FROM t") == [(0,)], path
        assert facts_of(conninfo, "t") == before
        assert leftovers(conninfo) == []


def test_a_line_that_ends_copy_is_noticed(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,name\n1,a\n\\.\n2,b\n3,c\n")
    with pytest.raises(PgsweepError):
        load(conninfo, path, piece_bytes=1 << 20)
    assert ask(conninfo, "SELECT count(*) FROM t") == [(0,)]


def test_duplicates_are_found_at_the_end_and_the_user_decides(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,name\n" + "".join(f"{n % 90},x\n" for n in range(100)))
    before = facts_of(conninfo, "t")
    given = LoadOptions(indexes="drop", piece_bytes=100)
    outcome = load_files(conninfo, [str(path)], "t", given).outcome
    assert outcome is not None
    assert outcome.ended == "incomplete"
    assert "GROUP BY id" in " ".join(outcome.problems)
    names = {title for title, _ in facts_of(conninfo, "t")}
    assert "index public.t_name" in names
    assert "index public.t_pkey" not in names
    with pytest.raises(UsageError, match="has begun and not ended"):
        load_files(conninfo, [str(path)], "t", given)
    ask(conninfo, "DELETE FROM t a USING t b WHERE a.id = b.id AND a.ctid > b.ctid")
    resumed = resume(conninfo, "t").outcome
    assert resumed is not None
    assert (resumed.ended, resumed.unchanged, resumed.resumed) == ("loaded", True, True)
    assert facts_of(conninfo, "t") == before
    ask(conninfo, "TRUNCATE t; INSERT INTO t VALUES (1000, 'old')")
    load_files(conninfo, [str(path)], "t", given)
    undone = roll_back(conninfo, "t").outcome
    assert undone is not None
    assert undone.unchanged
    assert ask(conninfo, "SELECT id FROM t") == [(1000,)]
    assert facts_of(conninfo, "t") == before
    assert leftovers(conninfo) == []


def test_a_load_with_refused_records_can_be_undone(conninfo: str, tmp_path: Path) -> None:
    """Rows of a piece with refused records must have the number of the piece's own transaction."""
    path, rejects = tmp_path / "x.csv", tmp_path / "bad.csv"
    lines = [f"{n % 80},x" if n % 10 else f"{n},x,too many" for n in range(1, 100)]
    path.write_text("id,name\n" + "\n".join(lines) + "\n")
    ask(conninfo, "INSERT INTO t VALUES (1000, 'old')")
    given = LoadOptions(indexes="drop", piece_bytes=100, max_rejects=50)
    outcome = load_files(conninfo, [str(path)], "t", given, rejects=rejects).outcome
    assert outcome is not None
    assert (outcome.ended, outcome.rows, outcome.rejected) == ("incomplete", 90, 9)
    assert roll_back(conninfo, "t").outcome is not None
    assert ask(conninfo, "SELECT id FROM t") == [(1000,)]
    assert leftovers(conninfo) == []


def test_unlogged_tables_are_loaded_in_one_transaction(conninfo: str, tmp_path: Path) -> None:
    """A crash empties them, and the pieces of a journal would still be noted."""
    path = tmp_path / "x.csv"
    path.write_text("id,name\n1,x\n")
    ask(conninfo, "ALTER TABLE t SET UNLOGGED")
    plan = plan_load(conninfo, [str(path)], "t", LoadOptions(indexes="drop", jobs=2)).plan
    assert (plan.strategy, plan.persistence, plan.jobs) == ("one transaction", "unlogged", 1)
    assert more(conninfo, path).rows == 1


def test_rows_that_others_changed_are_not_rolled_back(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,name\n1,a\n1,b\n2,c\n")
    load_files(conninfo, [str(path)], "t", LoadOptions(indexes="drop"))
    ask(conninfo, "UPDATE t SET name = 'theirs' WHERE id = 2")
    with pytest.raises(PgsweepError, match="1 of 3 rows of this load were changed"):
        roll_back(conninfo, "t")
    assert ask(conninfo, "SELECT count(*) FROM t") == [(3,)]


def test_standard_input_and_the_command_line(conninfo: str, tmp_path: Path) -> None:
    data = "id,name\n" + "".join(f"{n},x\n" for n in range(1000))
    words = ("load", "-", "t", "-d", conninfo)
    refused = run(*words, stdin=data)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    done = run(*words, "--yes", "--indexes", "drop", stdin=data)
    assert done.returncode == 0, done.stderr
    assert "1 000 rows loaded" in done.stdout
    assert "t_pkey" in done.stderr  # the plan comes first
    assert ask(conninfo, "SELECT count(*) FROM t") == [(1000,)]
    path = tmp_path / "x.csv"
    path.write_text(data)
    for form in ([], ["--json"], ["--csv"]):
        done = run("load", str(path), "t", "-d", conninfo, "--plan", *form)
        assert done.returncode == 0, done.stderr
        assert "t_pkey" in done.stdout
    again = run("load", str(path), "t", "-d", conninfo, "--yes")
    assert again.returncode == 1
    # Nothing is dropped for so few rows, so it is one transaction.
    assert "duplicate key" in again.stderr
    assert ask(conninfo, "SELECT count(*) FROM t") == [(1000,)]


def test_what_cannot_be_loaded_is_refused(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,name\n1,a\n")
    ask(conninfo, "CREATE VIEW v AS SELECT 1 AS id; CREATE ROLE loader_without_rights LOGIN")
    try:
        with pytest.raises(UsageError, match="is not a table"):
            plan_load(conninfo, [str(path)], "v", LoadOptions())
        with pytest.raises(MissingAbility, match="may not insert") as refused:
            plan_load(f"{conninfo} user=loader_without_rights", [str(path)], "t", LoadOptions())
        place = conninfo_to_dict(conninfo)
        assert f"psql -h {place['host']} -p {place['port']} -U postgres -d " in str(refused.value.hint)
        assert """'GRANT INSERT ON public.t TO loader_without_rights'""" in str(refused.value.hint)
        ask(conninfo, "GRANT INSERT, SELECT ON t TO loader_without_rights")
        plan = plan_load(f"{conninfo} user=loader_without_rights", [str(path)], "t", LoadOptions()).plan
        assert {entry.action for entry in plan.objects} == {"keep"}
        assert plan.strategy == "one transaction"
    finally:
        ask(conninfo, "DROP OWNED BY loader_without_rights; DROP ROLE loader_without_rights")


def test_practices_are_compared_on_a_copy_that_goes_again(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,name\n" + "".join(f"{n},name {n}\n" for n in range(1000)))
    before = facts_of(conninfo, "t")
    result = compare_practices(conninfo, [str(path)], "t", LoadOptions(), progress=NullListener())
    ratios = {practice.practice: practice.ratio_to_copy for practice in result.practices}
    assert ratios[COPY] == 1.0
    assert TOGETHER in ratios
    assert ratios["INSERT, one row a statement"] < ratios[COPY]
    assert all(len(practice.seconds) == 3 for practice in result.practices)
    assert facts_of(conninfo, "t") == before
    assert leftovers(conninfo) == []
    assert ask(conninfo, "SELECT count(*) FROM t") == [(0,)]


def test_decimals_of_parquet_have_no_exponent(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "CREATE TABLE exact (a text, b text[])")
    digits = [Decimal("0.0000001"), Decimal("-1.5"), None]
    column = pa.array(digits, pa.decimal128(20, 7))
    pq.write_table(
        pa.table({"a": column, "b": pa.array([digits] * 3, pa.list_(column.type))}), tmp_path / "x.parquet"
    )
    load_files(conninfo, [str(tmp_path / "x.parquet")], "exact", LoadOptions())
    texts = ["0.0000001", "-1.5000000", None]
    assert ask(conninfo, "SELECT a, b FROM exact") == [(text, texts) for text in texts]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.csv", b"PAR1" + bytes(20), "is a Parquet file, and not csv"),
        ("x.tsv", b"PGCOPY\n\xff\r\n\0" + bytes(8), "is a file of COPY's binary format"),
        ("x.csv", b"BZh91AY", "is compressed by bzip2"),
        ("x.csv", b"PK\3\4" + bytes(20), "is a zip archive"),
        ("x.csv.bz2", b"BZh91AY", "decompress it"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(PgsweepError) as failed:
        entry = find_inputs([str(path)], LoadOptions())[0]
        read_first(entry, LoadOptions())
    assert words in f"{failed.value.message} {failed.value.hint}"
