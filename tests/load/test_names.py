"""Names in files and options mean the same in every format, and what is not clear is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load.loading import load_files, plan_load
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.load import LoadOutcome
from tests.fix_cli import run
from tests.fix_load import ask, refused, trouble_database

pytestmark = pytest.mark.one_server

TABLES = """
CREATE TABLE p (id int, note text, qty int DEFAULT 7);
CREATE TABLE twice ("Name" text, name text, id int);
CREATE TABLE people (town text, first text, last text, "Mobile" text);
"""


@pytest.fixture
def conninfo(server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with trouble_database(server, TABLES) as found:
        yield found


def load(conninfo: str, path: Path, table: str = "p", **options: Any) -> LoadOutcome:
    ask(conninfo, f"TRUNCATE {table}")
    rejects = options.pop("rejects", None)
    outcome = load_files(conninfo, [str(path)], table, LoadOptions(**options), rejects=rejects).outcome
    assert outcome is not None
    assert outcome.ended == "loaded"
    return outcome


def files(folder: Path, names: list[str], rows: list[list[Any]]) -> list[Path]:
    """Write the same rows in each format that has names."""
    text = folder / "x.csv"
    text.write_text("".join(",".join(map(str, row)) + "\n" for row in [names, *rows]))
    tabs = folder / "x.tsv"
    tabs.write_text("".join("\t".join(map(str, row)) + "\n" for row in [names, *rows]))
    lines = folder / "x.jsonl"
    lines.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    table = folder / "x.parquet"
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.Table.from_arrays(columns, names=names), table)
    return [text, tabs, lines, table]


def test_names_are_the_same_but_for_case_in_every_format(conninfo: str, tmp_path: Path) -> None:
    for path in files(tmp_path, ["NOTE", "Id"], [["a", 1], ["b", 2]]):
        assert load(conninfo, path).rows == 2
        assert ask(conninfo, "SELECT id, note, qty FROM p ORDER BY id") == [(1, "a", 7), (2, "b", 7)], path
    # The same name is taken first; of several others none.
    for path in files(tmp_path, ["name", "id", "Name"], [["a", 1, "b"]]):
        load(conninfo, path, "twice")
        assert ask(conninfo, 'SELECT name, "Name" FROM twice') == [("a", "b")], path
    for path in files(tmp_path, ["NAME", "id"], [["a", 1]]):
        with pytest.raises(PgsweepError, match="`NAME` in the file may mean several columns: Name, name"):
            load(conninfo, path, "twice")
    for path in files(tmp_path, ["id", "ID", "note"], [[1, 2, "a"]]):
        with pytest.raises(PgsweepError, match=r"twice: id|two of its keys mean the column id"):
            load(conninfo, path)


def test_what_is_not_wanted_is_left_out_in_every_format(conninfo: str, tmp_path: Path) -> None:
    for path in files(tmp_path, ["id", "Extra", "note"], [[1, 'x,"y', "a"], [2, "", "b"]])[1:]:
        with pytest.raises(PgsweepError, match=r"Extra") as error:
            load(conninfo, path, header=True if path.suffix == ".tsv" else None)
        assert "--leave-out Extra" in str(error.value.hint)
        assert load(conninfo, path, leave_out=["extra"]).rows == 2
        assert ask(conninfo, "SELECT id, note, qty FROM p ORDER BY id") == [(1, "a", 7), (2, "b", 7)], path
    path, rejects = tmp_path / "x.csv", tmp_path / "bad.csv"
    path.write_bytes(
        b'id,extra,note,more\r\n1,"a\r\n,""b",note,\r\n2,,"q"",\nr",9\r\n3,x\r\n4,5,"",7\r\nx,,,\r\n5,,,'
    )
    given: dict[str, Any] = {"leave_out": ["extra", "more"], "rejects": rejects, "max_rejects": 9}
    assert load(conninfo, path, **given).rejected == 2
    assert ask(conninfo, "SELECT id, note FROM p ORDER BY id") == [
        (1, "note"), (2, 'q",\nr'), (4, ""), (5, None)
    ]  # fmt: skip
    assert refused(rejects) == [(6, "3,x"), (8, "x,,,")]
    with pytest.raises(PgsweepError, match="line 6: it has 2 fields, and should have 4"):
        load(conninfo, path, leave_out=["extra", "more"])
    # Without a header the names are those of --columns.
    path.write_text("1,x,a\n2,y,b\n")
    assert load(conninfo, path, columns=["id", "other", "note"], leave_out=["other"]).rows == 2
    assert ask(conninfo, "SELECT id, note FROM p ORDER BY id") == [(1, "a"), (2, "b")]
    with pytest.raises(UsageError, match="does not have othr"):
        path.write_text("id,note\n1,x\n")
        load(conninfo, path, leave_out=["othr"])
    # The second byte of a character is no delimiter.
    path = tmp_path / "x.tsv"
    path.write_bytes("id|other|note\n1|ポ|表\n2|ポ|ポ\n".encode("cp932"))
    assert load(conninfo, path, leave_out=["other"], encoding="SJIS", delimiter="|").rows == 2
    assert ask(conninfo, "SELECT note FROM p ORDER BY id") == [("表",), ("ポ",)]


def test_a_header_of_which_some_names_are_known_is_asked_about(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for header in ("town,Surname,Given name,Tel", "Ort,first,Tel,x", "a,b,c,mobile"):
        path.write_text(f"{header}\nBerne,Muster,Anna,1\n")
        done = run("load", str(path), "people", "-d", conninfo, "--yes")
        assert done.returncode == 2
        assert "has names of columns, and also other fields" in done.stderr
        assert "--no-header" in done.stderr
        assert "--leave-out" in done.stderr
        assert load(conninfo, path, "people", header=False).rows == 2
    path.write_text("town,Surname,Given name,Mobile\nBerne,Muster,Anna,1\n")
    columns = ["town", "last", "first", "Mobile"]
    assert load(conninfo, path, "people", header=True, columns=columns).rows == 1
    assert ask(conninfo, "SELECT last FROM people") == [("Muster",)]


def test_columns_that_contradict_the_header_are_refused(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("last,first\nMuster,Anna\n")
    for header in (None, True):
        with pytest.raises(UsageError, match=r"contradicts the header of .*: field 1 is last there"):
            load(conninfo, path, "people", columns=["first", "last"], header=header)
    assert load(conninfo, path, "people", columns=["first", "last"], header=False).rows == 2
    path.write_text("LAST,x\nMuster,Anna\n")
    with pytest.raises(UsageError, match="contradicts"):
        load(conninfo, path, "people", columns=["first", "town"], header=True)
    with pytest.raises(UsageError, match="has 2 fields, and --columns names 3"):
        load(conninfo, path, "people", columns=["last", "first", "town"], header=True)
    for path in files(tmp_path, ["id", "note"], [[1, "a"]]):
        with pytest.raises(
            UsageError, match=r"--columns names a column that the table does not have: nope|2 fields"
        ):
            load(conninfo, path, columns=["id", "note", "nope"])


def test_a_key_may_appear_first_after_many_lines(conninfo: str, tmp_path: Path) -> None:
    path, rejects = tmp_path / "x.jsonl", tmp_path / "bad.csv"
    lines = [json.dumps({"id": n}) for n in range(1500)]
    lines[1200] = '{"id": 1200, "Note": "late"}'
    lines[1300] = '{"note": "later", "id": 1300}'
    path.write_text("\n".join(lines) + "\n")
    for way in ({"single_transaction": True}, {"indexes": "drop", "jobs": 2, "piece_bytes": 5000}):
        assert load(conninfo, path, **way).rows == 1500
        assert ask(conninfo, "SELECT id, note FROM p WHERE note IS NOT NULL ORDER BY id") == [
            (1200, "late"), (1300, "later")
        ]  # fmt: skip
        assert ask(conninfo, "SELECT count(*) FROM p WHERE qty = 7") == [(1500,)]
    # The rows before would have had its default.
    lines[1400] = '{"id": 1400, "qty": 1}'
    lines[1450] = '{"id": 1450, "other": 1}'
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(PgsweepError, match="line 1401: its key qty is a column with a default"):
        load(conninfo, path)
    assert load(conninfo, path, rejects=rejects, max_rejects=5).rejected == 2
    assert [line for line, _ in refused(rejects)] == [1401, 1451]
    assert load(conninfo, path, leave_out=["other", "qty"]).rows == 1500
    assert load(conninfo, path, columns=["id", "qty"]).rows == 1500


TAKES_NOT: dict[str, list[dict[str, Any]]] = {
    "tsv": [{"quote": "'"}, {"escape": "\\"}, {"empty_is_null": True}],
    "jsonl": [{"null": "NA"}, {"header": True}, {"delimiter": ";"}, {"encoding": "LATIN1"}],
    "parquet": [{"null": "NA"}, {"header": False}, {"quote": "'"}, {"encoding": "UTF8"}],
    "binary": [{"null": "NA"}, {"leave_out": ["a"]}, {"max_rejects": 1}, {"delimiter": ";"}],
}


@pytest.mark.parametrize("kind", TAKES_NOT)
def test_options_that_a_format_does_not_take_are_refused(conninfo: str, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    path.write_text("1\ta\t2\n")
    for options in TAKES_NOT[kind]:
        with pytest.raises(UsageError, match=f"the format {kind} do not take --"):
            plan_load(conninfo, [str(path)], "p", LoadOptions(format=kind, **options))  # type: ignore[arg-type]


def test_whether_there_was_a_header_is_said(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for text, header in (("id,note,qty\n1,a,1\n", True), ("1,a,1\n", False)):
        path.write_text(text)
        words = ["load", str(path), "p", "-d", conninfo]
        planned = run(*words, "--plan")
        assert f"first record: {'a header' if header else 'a row'}." in planned.stdout
        done = run(*words, "--yes")
        assert ("the first record was taken for a header" in done.stdout) == header
        found = json.loads(run(*words, "--yes", "--json").stdout)
        assert found["plan"]["files"][0]["header"] is header
        assert found["outcome"]["headers"] == ([str(path)] if header else [])


def test_mixed_arrays_are_arrays_of_documents(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "ALTER TABLE p ADD docs jsonb[]")
    path = tmp_path / "x.jsonl"
    values = [
        ([1, "a", {"k": [2]}, None, True], ["1", '"a"', '{"k": [2]}', None, "true"]),
        ([1, [2, 3], {"k": 1}], ["1", "[2, 3]", '{"k": 1}']),
        ([[1], [2, 3]], ["[1]", "[2, 3]"]),
        ([[], [1]], ["[]", "[1]"]),
        ([[1, [2]], [3, 4]], ["[1, [2]]", "[3, 4]"]),
    ]
    path.write_text("".join(json.dumps({"id": n, "docs": v}) + "\n" for n, (v, _) in enumerate(values)))
    assert load(conninfo, path).rows == len(values)
    assert [row[0] for row in ask(conninfo, "SELECT docs::text[] FROM p ORDER BY id")] == [
        wanted for _, wanted in values
    ]


def test_times_before_the_year_1(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "ALTER TABLE p ADD day date, ADD at timestamp, ADD days date[], ADD zoned timestamptz")
    first = (date(1, 1, 1) - date(1970, 1, 1)).days
    days = [first - 1, first - 400, first - 40_000, first, 0, 3_000_000, None]
    seconds = [None if day is None else day * 86_400 for day in days]
    table = pa.table(
        {
            "id": range(len(days)),
            "day": pa.array(days, pa.date32()),
            "at": pa.array(seconds, pa.timestamp("s")),
            "zoned": pa.array(seconds, pa.timestamp("s", "UTC")),
            "days": pa.array([[day] for day in days], pa.list_(pa.date32())),
        }
    )
    path = tmp_path / "x.parquet"
    pq.write_table(table, path)
    assert load(conninfo, path).rows == len(days)
    found = ask(
        conninfo,
        "SELECT day - date '1970-01-01', extract(epoch FROM at)::bigint, days[1] - date '1970-01-01', "
        "extract(epoch FROM zoned)::bigint FROM p ORDER BY id",
    )
    assert found == [(day, second, day, second) for day, second in zip(days, seconds, strict=True)]


def test_escapes_of_the_text_format(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "CREATE TABLE esc (id int, us_er text)")
    path = tmp_path / "x.tsv"
    path.write_bytes(b"id\tout\tus_\\x65r\n1\tx\tb\\\n\n2\ty\tc\\\\\n3\tz\t\\056\n")
    options = LoadOptions(header=True, leave_out=["out"], max_rejects=5)
    outcome = load_files(conninfo, [str(path)], "esc", options, rejects=tmp_path / "bad").outcome
    assert outcome is not None
    assert (outcome.rows, outcome.rejected) == (3, 0)
    assert ask(conninfo, "SELECT * FROM esc ORDER BY id") == [(1, "b\n"), (2, "c\\"), (3, ".")]


def test_a_field_without_a_name_can_be_left_out(conninfo: str, tmp_path: Path) -> None:
    # An index that a data frame wrote; a delimiter at the end of each line.
    path = tmp_path / "x.csv"
    for text in (",id,note\n0,1,a\n", "id,note,\n1,a,\n"):
        path.write_text(text)
        words = ["load", str(path), "p", "-d", conninfo, "--yes"]
        hint = run(*words).stderr.partition("a header: ")[2].partition(", or")[0]
        assert hint == "--leave-out '\"\"'"
        assert run(*words, *shlex.split(hint)).returncode == 0
    assert ask(conninfo, "SELECT id, note FROM p") == [(1, "a")] * 2


def test_an_object_is_no_hstore(conninfo: str, tmp_path: Path) -> None:
    ask(conninfo, "CREATE EXTENSION IF NOT EXISTS hstore; CREATE TABLE pairs (id int, a hstore)")
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": 1, "a": {"x": "q=>t"}}\n{"id": 2, "a": "x=>1"}\n')
    given = LoadOptions(max_rejects=1, search_path=["public"])
    outcome = load_files(conninfo, [str(path)], "pairs", given, rejects=tmp_path / "bad").outcome
    assert outcome is not None
    assert (outcome.rows, outcome.rejected) == (1, 1)
    assert "hstore takes a string" in (tmp_path / "bad").read_text()
