"""A hint with a command works when it is pasted: the command that failed then works, or gives the next hint.

The server's superuser is not called postgres, and the role that runs pgsweep may do nothing at first.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgsweep.errors import MissingAbility
from pgsweep.pg.alter_system import check_allowed
from pgsweep.pg.catalog.consumers import Statements
from pgsweep.pg.private import cluster as private
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from tests.fix_cli import PGSWEEP, run
from tests.fix_cluster import own_database

SUPERUSER, ROLE, DATABASE = "chief", "app", "shop"
TABLES = """
CREATE TABLE stock (id int PRIMARY KEY, note text);
INSERT INTO stock SELECT g, repeat('x', 500) FROM generate_series(1, 5000) g;
"""
_MOST_ROUNDS = 6
_COMMAND = re.compile(r"(?:(?:sudo|runuser) -u \S+ (?:-- )?)?\b(?:psql|pgsweep|mkdir|chmod) ")


class Case(NamedTuple):
    """A command that fails.

    Attributes:
        words: its arguments, without those that name server, role and database.
        setup: what a superuser executes before, in the database.
        option: the option to take from the hint where it names no command, and how many words it has.
        role: that runs it.
    """

    words: str
    setup: str = ""
    option: tuple[str, int] = ("-U", 2)
    role: str = ROLE


CASES = {
    "cache": Case("cache --source sql"),
    "top": Case("top --once --interval 100ms --source sql"),
    "save": Case("warm save x.heat --source sql"),
    "record": Case("record --source sql --for 1s -o x.evidence"),
    "evict": Case("cache --evict stock --yes"),
    "warm": Case("warm run --relations stock --source sql"),
    "warm by heat": Case("warm run --heat x.heat --relations stock", role=SUPERUSER),
    "keep": Case("warm keep stock --for 100ms", option=("--budget", 2)),
    "check": Case("warm check no.heat --source sql", "CREATE EXTENSION pg_buffercache", role=SUPERUSER),
    "folder": Case("doctor -o 'of results/x.json'"),
    "no database": Case("cache", "ALTER DATABASE shop CONNECTION LIMIT 0"),
    "no role": Case("cache", "ALTER ROLE app CONNECTION LIMIT 0"),
    "no entry": Case("cache", "REVOKE CONNECT ON DATABASE shop FROM PUBLIC"),
    "insert": Case("load rows.csv stock --yes"),
    "rejects": Case(
        "load wrong.csv stock --yes --rejects refused --max-rejects 1", "", ("--max-rejects", 2), SUPERUSER
    ),
    "parameters": Case("footprint 'SELECT $1::int'", option=("--param", 2)),
    "writes": Case("footprint 'DELETE FROM stock'", "", ("--allow-writes", 1), SUPERUSER),
}


@pytest.fixture(scope="module")
def chiefs() -> Iterator[Cluster]:
    """A server of 18 whose superuser has a name of its own."""
    settings = {"shared_buffers": "16MB", "autovacuum": "off"}
    with Cluster.create(settings=settings) as cluster, pytest.MonkeyPatch.context() as patched:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE ROLE other SUPERUSER LOGIN")
        patched.setattr(private, "_SUPERUSER", "other")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(f"ALTER ROLE postgres RENAME TO {SUPERUSER}")
            connection.execute("ALTER ROLE other NOLOGIN")
        patched.setattr(private, "_SUPERUSER", SUPERUSER)
        yield cluster


@pytest.fixture
def shop(chiefs: Cluster) -> Iterator[list[str]]:
    """A database, and a role without rights; gives psql's options for both."""
    with psycopg.connect(chiefs.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN")
    with own_database(chiefs, DATABASE, TABLES, owner=SUPERUSER) as conninfo:
        place = conninfo_to_dict(conninfo)
        yield ["-h", str(place["host"]), "-p", str(place["port"]), "-U", ROLE, "-d", DATABASE]
    with psycopg.connect(chiefs.conninfo(), autocommit=True) as connection:
        connection.execute(f"DROP ROLE {ROLE}")


def commands_in(hint: str) -> list[str]:
    """Return the commands of a hint: each ends at its end, or where a sentence goes on outside of quotes."""
    found, at = [], 0
    while (match := _COMMAND.search(hint, at)) is not None:
        rest = hint[match.start() :]
        end = re.match(r"(?:'[^']*'|\"(?:\\.|[^\"])*\"|\\.|[^;,`)\n'\"])*", rest)
        assert end is not None
        found.append(end[0].strip())
        at = match.start() + end.end()
    return found


def paste(chiefs: Cluster, command: str, folder: Path) -> None:
    """Execute a command in a shell; the reader fills in the superuser where no session knew it."""
    path = os.pathsep.join([str(chiefs.bindir), str(Path(PGSWEEP).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-c", command.replace("-U NAME", f"-U {SUPERUSER}")],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": path},
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"


def hint_of(stderr: str) -> str:
    _, found, hint = stderr.partition("\nhint: ")
    assert found, stderr
    return hint


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_following_the_hints_leads_to_the_end(
    chiefs: Cluster, shop: list[str], tmp_path: Path, case: Case
) -> None:
    (tmp_path / "rows.csv").write_text("6001,a\n6002,b\n")
    (tmp_path / "wrong.csv").write_text("6001,a\nx,b\ny,c\nz,d\n")
    with psycopg.connect(chiefs.conninfo(DATABASE), autocommit=True) as connection:
        connection.execute(case.setup.encode())
    command = [*shlex.split(case.words), *shop]
    command[command.index("-U") + 1] = case.role
    said: list[str] = []
    for _ in range(_MOST_ROUNDS):
        done = run(*command, cwd=tmp_path)
        if done.returncode == 0:
            break
        hint = hint_of(done.stderr)
        assert hint not in said, "it was followed, and did not help"
        said.append(hint)
        if found := commands_in(hint):
            paste(chiefs, found[0], tmp_path)
        else:
            option, words = case.option
            given = shlex.split(hint[hint.index(option) :].replace(",", " "))[:words]
            command += given
    else:
        raise AssertionError(said)
    assert said, "it has to fail at first"


def test_a_relation_in_the_place_of_the_database_is_named_as_one(shop: list[str]) -> None:
    done = run("warm", "plan", "stock", *shop)
    assert (done.returncode, "--relations stock" in done.stderr) == (2, True)
    assert "--relations" not in run("doctor", "stock", *shop).stderr


def test_doctor_names_what_works(chiefs: Cluster, shop: list[str], tmp_path: Path) -> None:
    """Each command enables its ability, on a server where the role may do nothing."""

    def abilities() -> dict[str, dict[str, object]]:
        done = run("doctor", "--json", *shop)
        assert done.returncode == 0, done.stderr
        return {one["name"]: one for one in json.loads(done.stdout)["abilities"] if one["area"] == "server"}

    before = abilities()
    wanted = {name: str(one["enable"]) for name, one in before.items() if one["enable"]}
    assert {"pg_buffercache", "pg_prewarm", "pg_monitor"} <= wanted.keys()
    try:
        for command in wanted.values():
            paste(chiefs, command, tmp_path)
        after = abilities()
        assert {name: after[name]["available"] for name in wanted} == dict.fromkeys(wanted, True)
    finally:
        with psycopg.connect(chiefs.conninfo(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET ALL")
            connection.execute("SELECT pg_reload_conf()")


def test_a_restore_names_the_extension_that_it_lacks(
    chiefs: Cluster, shop: list[str], tmp_path: Path
) -> None:
    """Where much is there already, what is not read is a line of the result."""
    with psycopg.connect(chiefs.conninfo(DATABASE), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm")
        connection.execute("CREATE TABLE small AS SELECT 1 AS one")
        connection.execute("SELECT pg_prewarm('stock'), pg_prewarm('small')")
        chief = [SUPERUSER if word == ROLE else word for word in shop]
        assert run("warm", "save", "x.heat", *chief, cwd=tmp_path).returncode == 0
        connection.execute("SELECT pg_buffercache_evict_relation('small')")
        connection.execute("DROP EXTENSION pg_prewarm")
    words = ("warm", "restore", "x.heat", "--into", "pool", *chief)
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith(f"not read: {DATABASE}: ")]
    [command] = commands_in(line)
    paste(chiefs, command, tmp_path)
    done = run(*words, cwd=tmp_path)
    assert (done.returncode, f"not read: {DATABASE}: " in done.stdout) == (0, False)


def test_what_looks_like_a_statement_is_one(chiefs: Cluster, shop: list[str]) -> None:
    """Of each relation that a plan leaves out; an index has no rights of its own to grant."""
    with psycopg.connect(chiefs.conninfo(DATABASE), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_prewarm; CREATE EXTENSION pg_buffercache")
        connection.execute("CREATE TABLE secret (id int PRIMARY KEY, body text STORAGE EXTERNAL)")
        connection.execute("INSERT INTO secret SELECT g, repeat('x', 9000) FROM generate_series(1, 50) AS g")
        connection.execute(f"GRANT SELECT ON stock TO {ROLE}; GRANT pg_monitor TO {ROLE}")

        def refused() -> dict[str, str]:
            done = run("warm", "plan", "--assume-rate", "1GB", "--json", *shop)
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)["refused"]
            return {one["relation"]: one["enable"] for one in found if one["schema"] == "public"}

        statements = [text for text in refused().values() if text.startswith("GRANT ")]
        assert statements
        for text in statements:
            connection.execute(text.encode())
        assert refused() == {}


@pytest.mark.parametrize("libraries", ["", "auto_explain, pg_prewarm"])
def test_what_counts_statements_is_loaded_and_created(
    chiefs: Cluster, shop: list[str], tmp_path: Path, libraries: str
) -> None:
    """Both steps are in the hint, and the libraries that were loaded stay; in between the server restarts."""
    conninfo = f"{chiefs.conninfo(DATABASE)} user={ROLE}"
    with psycopg.connect(chiefs.conninfo(DATABASE), autocommit=True) as connection:
        connection.execute(f"GRANT pg_monitor TO {ROLE}")
    chiefs.restart({"shared_preload_libraries": libraries} if libraries else {})
    try:
        with connect(conninfo) as session:
            with pytest.raises(MissingAbility) as caught:
                Statements(session)
            commands = commands_in(caught.value.hint or "")
        assert len(commands) == 2
        for command in commands:
            paste(chiefs, command, tmp_path)
        chiefs.restart()
        with connect(conninfo) as session:
            assert Statements(session).read()
            row = session.execute("SHOW shared_preload_libraries").fetchone()
        assert row is not None
        wanted = [name.strip() for name in f"{libraries},pg_stat_statements".split(",") if name]
        assert [name.strip() for name in row[0].split(",")] == wanted
    finally:
        with psycopg.connect(chiefs.conninfo(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET ALL")
        chiefs.restart()


def test_a_role_that_does_not_see_the_libraries_is_not_told_to_replace_them(
    chiefs: Cluster, shop: list[str]
) -> None:
    conninfo = f"{chiefs.conninfo(DATABASE)} user={ROLE}"
    with connect(conninfo) as session, pytest.raises(MissingAbility) as caught:
        Statements(session)
    assert "ALTER SYSTEM" not in (caught.value.hint or "")


def test_who_may_change_settings_is_named(chiefs: Cluster, shop: list[str]) -> None:
    conninfo = f"{chiefs.conninfo(DATABASE)} user={ROLE}"
    with connect(conninfo) as session, pytest.raises(MissingAbility) as caught:
        check_allowed(session)
    assert f"-U {SUPERUSER}" in (caught.value.hint or "")
