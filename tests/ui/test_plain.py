"""Names with escape sequences, newlines and formulas: shown, pasted and stored without doing anything."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg import sql

from pgsweep.pg.private.cluster import Cluster
from pgsweep.plain import (
    cleaned,
    database_word,
    decode_name,
    decode_nullable,
    printable_identifier,
    relation_label,
    sentence,
    shell_word,
    shown,
    sql_identifier,
)
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json, plain, to_csv, to_json, to_text
from tests.fix_cli import PGSWEEP
from tests.fix_cli import run as pgsweep
from tests.fix_results import doctor_result
from tests.fix_screen import screen_of

NASTY = (
    "csi\x1b[31m\x1b[2J",
    "osc\x1b]0;title\x07",
    "c1\x9b31m",
    "del\x7f\x08\x08",
    "new\nline; touch hurt #",
    "return\rover",
    "bidi\u202eesrever\u2066",
    "zero\u200bwidth\ufeff",
    "quo'te\"$(touch hurt)`touch hurt`\\",
    "-v",
    "=1+1",
    "host=203.0.113.1 user=stranger",
    "表\x1b[0m",
)


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("name", NASTY)
def test_a_name_is_one_line_and_printable(name: str) -> None:
    assert shown(name).isprintable()
    assert harmless(cleaned(name))


def test_our_own_colours_pass_and_no_others() -> None:
    red = Terminal(colour=True).paint("red", "red", "bold")
    assert cleaned(f"{red} \x1b[2J\n{red}", colours=True) == f"{red} \\x1b[2J\n{red}"
    assert cleaned("\x1b[8mhidden", colours=True) == "\\x1b[8mhidden"
    assert "\x1b" not in cleaned(red)


@pytest.mark.parametrize("shell", [name for name in ("bash", "zsh", "ksh", "sh") if shutil.which(name)])
@pytest.mark.parametrize("name", NASTY)
def test_a_pasted_word_is_the_name_and_runs_nothing(name: str, shell: str, tmp_path: Path) -> None:
    script = f"printf %s {shell_word(name)}"
    assert script.isprintable()
    done = subprocess.run([shell, "-c", script], cwd=tmp_path, capture_output=True, check=True)
    assert not list(tmp_path.iterdir())
    if shell != "sh" or name.isprintable():
        assert done.stdout == name.encode()


@pytest.fixture(scope="module")
def nasty_server() -> Iterator[Cluster]:
    """A server whose databases, schemas, tables and one role have such names."""
    with Cluster.create(None, {"shared_buffers": "4MB", "max_connections": "20"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache", "pg_prewarm")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            for name in NASTY:
                identifier = sql.Identifier(name)
                connection.execute(sql.SQL("CREATE DATABASE {}").format(identifier))
                connection.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM public").format(identifier))
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(identifier))
                connection.execute(sql.SQL("CREATE TABLE {0}.{0} AS SELECT 1 AS i").format(identifier))
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(NASTY[0])))
        yield cluster


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor"],
        ["cache", "--source", "sql"],
        ["cache", "--by", "database"],
        ["top", "--once", "--top", "1000"],
        ["warm", "plan", "--every-database"],
        ["memory"],
        ["record", "--dry-run"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
@pytest.mark.parametrize("form", ["text", "json", "colours"])
def test_no_control_of_a_server_leaves(nasty_server: Cluster, arguments: list[str], form: str) -> None:
    conninfo = nasty_server.conninfo()
    options = {"text": ["--color", "never"], "json": ["--json"], "colours": ["--color", "always"]}[form]
    done = pgsweep(*arguments, *options, conninfo)
    for text in (done.stdout, done.stderr):
        # Our own colours are the only sequences, and none of a name is among them.
        assert cleaned(text, colours=form == "colours") == text
        assert "csi\x1b" not in text
        assert "表\x1b" not in text
    assert done.returncode == 0, done.stderr
    assert form != "json" or json.loads(done.stdout)


def test_the_commands_of_doctor_can_be_pasted(nasty_server: Cluster, tmp_path: Path) -> None:
    """Its GRANT for the databases with those names is what the role needed, and no other word is run."""
    conninfo = nasty_server.conninfo()
    done = pgsweep("doctor", "--json", "-U", NASTY[0], conninfo)
    abilities = {ability["name"]: ability for ability in json.loads(done.stdout)["abilities"]}
    commands = [abilities[name]["enable"] for name in ("databases", "pg_monitor")]
    environment = {**os.environ, "PATH": f"{nasty_server.bindir}:{os.environ['PATH']}"}
    for command in commands:
        assert command.isprintable()
        subprocess.run(["bash", "-c", command], check=True, cwd=tmp_path, env=environment)
    assert not list(tmp_path.iterdir())
    again = json.loads(pgsweep("doctor", "--json", "-U", NASTY[0], conninfo).stdout)
    now = {ability["name"]: ability["available"] for ability in again["abilities"]}
    assert now["databases"]
    assert now["pg_monitor"]
    for name in NASTY:
        command = f"psql -XAt {conninfo_options(conninfo)} -d {database_word(name)} -c 'SELECT 1'"
        reported = subprocess.run(
            ["bash", "-c", command], check=True, capture_output=True, text=True, env=environment
        )
        assert reported.stdout == "1\n"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for name in NASTY:
            text = f"SELECT 1 FROM {sql_identifier(name)}.{sql_identifier(name)}"
            assert text.isprintable()
            assert connection.execute(text.encode()).fetchone() == (1,)


def conninfo_options(conninfo: str) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(conninfo)
    return f"-h {parts['host']} -p {parts['port']} -U {parts['user']}"


def test_a_terminal_gets_no_sequence_of_theirs(nasty_server: Cluster) -> None:
    for arguments in (["doctor"], ["cache", "--csv"], ["cache"]):
        with screen_of(*arguments, "-U", "postgres", nasty_server.conninfo(), columns=200, lines=200) as page:
            assert page.wait_end() == 0
            assert b"\x1b[2J" not in page.raw
            assert "\x9b".encode() not in page.raw
            assert "\u202e".encode() not in page.raw


def test_a_result_file_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    changed = json.loads(to_json(doctor_result()))
    for ability in changed["abilities"]:
        ability["why"] = "\x1b[2Jwhy\nnot \x9b1m"
        ability["enable"] = "true\n\x1b]0;x\x07"
    changed["host"]["user"] = "\x1b[31mroot"
    (tmp_path / "r.json").write_text(json.dumps(changed))
    for form in ("--json", "--csv", ""):
        done = pgsweep("report", "--from", "r.json", *([form] if form else []), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        # CSV that no person sees is data, with its texts as they are.
        assert harmless(done.stdout) == (form != "--csv")
    broken = tmp_path / "a\x1b[31mb.json"
    broken.write_text('{"schema": "\x1b[31m"}')
    reported = pgsweep("report", "--from", str(broken)).stderr
    assert harmless(reported)
    assert "a\\x1b[31mb.json" in reported


def test_csv_has_no_formula_and_gives_every_name_back() -> None:
    names = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1", "'=1", "plain", "'", "a=b", 'a,"b']
    base = doctor_result()
    abilities = [msgspec.structs.replace(base.abilities[0], name=name, why=name) for name in names]
    text = to_csv(msgspec.structs.replace(base, abilities=abilities))
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    for name, row in zip(names, rows, strict=True):
        assert not row["ability"].startswith(("=", "+", "-", "@", "\t", "\r", "＝"))
        assert row["ability"].removeprefix("'") == name
    assert [row["ability"] for row in rows if row["why"] == "plain"] == ["plain"]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "span" and attrs in ([], [("class", "long")]):
            return  # a word of a command, of which a name may have any number
        self.tags.append((tag, tuple(sorted(name for name, _ in attrs))))


@pytest.mark.parametrize("schema", ["doctor", "demo", "predict", "prove", "record"])
def test_html_has_the_same_elements_whatever_the_names_are(schema: str) -> None:
    """Every text of a result, in elements, attributes, pictures and the embedded JSON, stays text."""
    from pgsweep.ui.kit.report import to_html
    from tests import fix_results

    result = getattr(fix_results, f"{schema}_result")
    harm = "\"'><script>alert(1)</script><img src=x onerror=alert(1)> style=x &lt; --> ]]> \x1b[31m"

    def injected(value: object, name: str = "") -> object:
        if isinstance(value, str) and name not in FIXED:
            return value + harm
        if isinstance(value, msgspec.Struct):
            fields = {field: injected(getattr(value, field), field) for field in value.__struct_fields__}
            return msgspec.structs.replace(value, **{k: v for k, v in fields.items() if k != "schema"})
        if isinstance(value, list):
            return [injected(item, name) for item in value]
        return value

    before, after = _Page(), _Page()
    before.feed(to_html(result()))
    page = to_html(injected(result()))  # type: ignore[arg-type]
    after.feed(page)
    assert after.tags == before.tags
    assert "\x1b" not in page


FIXED = {"schema", "level", "created_at", "area", "source", "kind", "at", "name", "workload"}
"""Words that choose how something is shown."""


def test_what_is_read_back_is_as_it_was(tmp_path: Path) -> None:
    base = doctor_result()
    nasty = msgspec.structs.replace(
        base,
        abilities=[msgspec.structs.replace(base.abilities[0], why=name) for name in (*NASTY, "\U000e0001")],
    )
    text = to_json(nasty)
    assert harmless(text)
    assert from_json(text.encode(), "r.json") == nasty
    assert harmless(to_text(nasty, Terminal()))
    assert plain(base) == base


@pytest.mark.parametrize("name", [*NASTY, "plain", "back\\slash", 'qu"oted'])
def test_one_name_among_thousands_is_shown_as_it_would_be_alone(name: str) -> None:
    base = doctor_result()
    alone, usual = (msgspec.structs.replace(base.abilities[0], why=why) for why in (name, "usual"))
    many = msgspec.structs.replace(base, abilities=[usual] * 2500 + [alone])
    seen = plain(many)
    assert seen.abilities[-1] == plain(msgspec.structs.replace(base, abilities=[alone])).abilities[0]
    assert seen.abilities[-1].why == shown(name)


def test_thousands_of_names_without_escapes_are_not_taken_one_by_one() -> None:
    base = doctor_result()
    many = msgspec.structs.replace(base, abilities=base.abilities * 5000)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        assert plain(many) is many
    finally:
        sys.setprofile(None)
    assert calls < len(many.abilities)


CLOSED = """
import os, sys
for number in {numbers}:
    os.close(number)
os.execv(sys.argv[1], sys.argv[1:])
"""


def closed(numbers: tuple[int, ...], *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CLOSED.format(numbers=numbers), PGSWEEP, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["doctor", "-h", "/nowhere"]], ids=str)
def test_a_closed_stdout_is_reported(arguments: list[str], tmp_path: Path) -> None:
    done = closed((1,), *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: stdout is closed\ncause: ")


def test_a_closed_stderr_or_stdin_hinders_nothing(wheel18: Cluster, tmp_path: Path) -> None:
    done = closed(
        (0, 2),
        *("record", wheel18.conninfo(), "--source", "sql", "--for", "1s", "-o", "a.evidence"),
        cwd=tmp_path,
    )
    assert done.returncode == 0
    assert "a.evidence" in done.stdout
    # Messages went nowhere, least of all into a file that got the number 2.
    assert (tmp_path / "a.evidence" / "meta.json").read_text().startswith("{")
    assert closed((0, 2), "doctor", "-h", "/nowhere", cwd=tmp_path).returncode == 3


def paste(cluster: Cluster, conninfo: str, text: str) -> None:
    """Send what a dry run printed by psql."""
    words = [str(cluster.bindir / "psql"), "-X", "-q", "-d", conninfo]
    done = subprocess.run(words, input=text, text=True, capture_output=True, check=True)
    assert "syntax error" not in done.stderr


def buffers_of_orders(conninfo: str, schema: str) -> int:
    """Return how many blocks of the table are in the pool."""
    counted = sql.SQL(
        "SELECT count(*) FROM {}.pg_buffercache"
        " WHERE relfilenode = pg_relation_filenode('orders') AND relforknumber = 0"
    ).format(sql.Identifier(schema))
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(counted).fetchone()
    assert row is not None
    return int(row[0])


def test_a_dry_run_can_be_pasted_whatever_the_names_are(tmp_path: Path) -> None:
    """A newline in a database's name ends no comment, and a schema with % in its name is a schema."""
    name, schema = "new\nDROP TABLE hurt; --", "odd%s{schema}%\x1b[31m"
    with Cluster.create(None, {"shared_buffers": "4MB"}) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        conninfo = cluster.conninfo(name)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            for extension in ("pg_buffercache", "pg_prewarm"):
                connection.execute(
                    sql.SQL("CREATE EXTENSION {} SCHEMA {}").format(
                        sql.Identifier(extension), sql.Identifier(schema)
                    )
                )
            connection.execute("CREATE TABLE orders AS SELECT generate_series(1, 5000) AS id")
            for _ in range(3):
                connection.execute("SELECT count(*) FROM orders")
            row = connection.execute("SELECT pg_relation_size('orders') / 8192").fetchone()
        assert pgsweep("warm", "save", "shop.heat", conninfo, cwd=tmp_path).returncode == 0
        run = ("warm", "run", "--relations", "orders", "-d", conninfo)
        for words in (
            ("record", "--source", "sql", "--dry-run", conninfo),
            (*run, "--dry-run"),
            ("warm", "restore", "shop.heat", "--dry-run", conninfo),
            ("warm", "keep", "orders", "--dry-run", "-d", conninfo),
        ):
            cluster.restart()
            done = pgsweep(*words, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert not [line for line in done.stdout.split("\n") if line.startswith("DROP")]
            assert "\x1b" not in done.stdout
            assert "\\n" not in done.stdout.replace("new\\nDROP TABLE hurt; --", "")
            if words[0] == "warm":
                assert buffers_of_orders(conninfo, schema) == 0
                sql_of = re.compile("^(statements:|Statements, .*)$", re.MULTILINE).split(done.stdout)[-1]
                paste(cluster, conninfo, sql_of)
                assert row == (buffers_of_orders(conninfo, schema),)
        for words in (run, ("warm", "keep", "orders", "--for", "1s", "-d", conninfo)):
            done = pgsweep(*words, cwd=tmp_path)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["order", "a.b", "Mixed", "two words", 'a"b', "größe", "9", "a$1", "x,y"])
def test_the_label_of_a_relation_is_its_name_for_regclass(wheel18: Cluster, name: str) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        for schema in ("public", name):
            if schema == name:
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            whole = sql.Identifier(schema, name)
            connection.execute(sql.SQL("CREATE TABLE {} ()").format(whole))
            try:
                row = connection.execute(
                    sql.SQL("SELECT to_regclass(%s) = {}::regclass").format(sql.Literal(whole.as_string())),
                    [relation_label(schema, name)],
                ).fetchone()
                assert row == (True,)
            finally:
                connection.execute(sql.SQL("DROP TABLE {}").format(whole))
                if schema == name:
                    connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema)))


@pytest.mark.parametrize("name", [*NASTY, "plain", "Two words", 'qu"oted\n""'])
def test_a_quoted_name_with_controls_is_written_as_escapes(wheel18: Cluster, name: str) -> None:
    with psycopg.connect(wheel18.conninfo()) as connection:
        row = connection.execute("SELECT quote_ident(%s)", [name]).fetchone()
        assert row is not None
        written = printable_identifier(row[0])
        assert written.isprintable()
        [column] = connection.execute(f"SELECT 1 AS {written}".encode()).description or []
    assert column.name == name


def test_a_name_is_quoted_where_the_server_quotes_it(server: Cluster) -> None:
    """The server's own key words among them: a newer one may have more of them, an older one fewer."""
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        names = [name for (name,) in connection.execute("SELECT word FROM pg_get_keywords()")]
        names += ["looker", "_a1", "1a", "a$1", "Looker", "größe", "two words", 'a"b', ""]
        quoted = connection.execute("SELECT array_agg(quote_ident(n)) FROM unnest(%s::text[]) AS n", [names])
        [(wanted,)] = quoted.fetchall()
    newest = server.version_num >= 180000
    for name, by_server in zip(names, wanted, strict=True):
        assert sql_identifier(name) == by_server or (not newest and name == by_server), name


def test_a_name_that_is_not_there_is_no_empty_name() -> None:
    assert (decode_name(None), decode_nullable(None)) == ("", None)
    assert decode_name(b"a\xff") == decode_nullable(b"a\xff") == "a\\xff"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("the pool is small", "The pool is small."),
        ("shared_buffers was not full", "shared_buffers was not full."),
        ("a doubt about work_mem", "A doubt about work_mem."),
        ("`t` is read", "`t` is read."),
        ("", "."),
    ],
)
def test_a_setting_at_the_beginning_of_a_sentence_keeps_its_name(text: str, wanted: str) -> None:
    assert sentence(text) == wanted
