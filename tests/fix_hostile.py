"""A server on which one database belongs to somebody who wants more rights: `hostile`.

The traps are made for what pgsweep really sends: the statements of all commands are taken from the server's
own log, and the database gets a function or an operator for each name in them, with every list of parameters
that pg_catalog has for it. Each trap writes a line to the server's log, which no transaction undoes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run

SPRUNG = "TRAP SPRUNG"
_STATEMENT = re.compile(
    r"^(?P<session>[0-9a-f.]+)\|(?P<database>[^|]*)\|(?P<application>[^|]*)\|"
    r"LOG:  (?:statement|execute [^:]+): (?P<text>.*)"
)
_FUNCTIONS = """
SELECT p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid),
       pg_catalog.format_type(p.prorettype, NULL), p.proretset
FROM pg_catalog.pg_proc AS p
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname = ANY (%s)
"""
_OPERATORS = """
SELECT o.oid, o.oprname, CASE WHEN o.oprleft <> 0 THEN pg_catalog.format_type(o.oprleft, NULL) END,
       pg_catalog.format_type(o.oprright, NULL), pg_catalog.format_type(o.oprresult, NULL)
FROM pg_catalog.pg_operator AS o
WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprname = ANY (%s)
"""
_OF_CODE = "lower(a) || length(b) <> c"
"""What the functions of `_fill_own` name: the log has no statements of functions."""

_BAIT = (
    "pg_buffercache",
    "pg_stat_io",
    "pg_class",
    "pg_database",
    "pg_settings",
    "pg_stat_activity",
    "pg_locks",
)
"""Views that somebody might put beside those of an extension or of pg_catalog."""


@dataclass
class HostileServer:
    """The server, and what its log has.

    Attributes:
        traps: how many functions and operators lie in wait.
        folder: for files that commands write.
    """

    cluster: Cluster
    folder: Path
    traps: int = 0
    rounds: int = 0

    def log(self, begin: int = 0) -> str:
        """Return the server's log from a byte on."""
        return self.cluster.log_path.read_bytes()[begin:].decode("utf-8", "replace")

    def sessions(self, begin: int = 0) -> dict[str, list[str]]:
        """Return the statements of each of pgsweep's sessions, in their order."""
        found: dict[str, list[str]] = {}
        for match in self._statements(begin):
            found.setdefault(match["session"], []).append(match["text"])
        return found

    def databases(self) -> set[str]:
        """Return those that sessions of pgsweep were in."""
        return {match["database"] for match in self._statements()}

    def _statements(self, begin: int = 0) -> Iterator[re.Match[str]]:
        # A further line of a message begins with a tab.
        for line in self.log(begin).replace("\n\t", " ").splitlines():
            match = _STATEMENT.match(line)
            if match and match["application"].startswith("pgsweep"):
                yield match

    def commands(self, database: str) -> tuple[list[list[str]], list[list[str]]]:
        """Return the command lines that look at or measure one database, and those that warm it, in order."""
        self.rounds += 1
        heat = self.folder / f"{database}-{self.rounds}.heat"
        evidence = self.folder / f"{database}-{self.rounds}"
        at = ["-d", self.cluster.conninfo(database)]
        rows = self.folder / "orders.csv"
        rows.write_text("id,note\n1,x\n", encoding="utf-8")
        looking = [
            ["doctor", *at],
            ["cache", *at],
            ["cache", *at, "--source", "sql", "--by", "relation"],
            ["cache", *at, "--map", "public.orders"],
            ["top", *at, "--once"],
            ["memory", *at],
            ["memory", "budget", *at],
            ["memory", "kernel", *at],
            ["hugepages", *at],
            ["record", *at, "--source", "sql", "--for", "1s", "-o", f"{evidence}.sql.evidence"],
            ["record", *at, "--source", "peek", "--for", "1s", "-o", f"{evidence}.peek.evidence"],
            ["record", *at, "--source", "trace", "--for", "1s", "-o", f"{evidence}.trace.evidence"],
            ["record", *at, "--source", "sql", "--dry-run"],
            ["load", str(rows), "public.orders", *at, "--plan"],
            ["load", str(rows), "app.items", *at, "--yes"],
            ["load", str(rows), "app.items", *at, "--compare", "--yes"],
        ]
        warming = [
            ["warm", "plan", *at, "--every-database"],
            ["warm", "plan", *at, "--relations", "public.orders"],
            ["warm", "run", *at, "--relations", "public.orders"],
            ["warm", "save", str(heat), *at],
            ["warm", "restore", str(heat), *at],
            ["warm", "check", str(heat), *at],
            ["warm", "keep", "public.orders", *at, "--for", "1s"],
        ]
        return looking, warming

    def run_all(
        self, *databases: str, chosen: Callable[[Sequence[str]], bool] = lambda _: True
    ) -> dict[str, str]:
        """Run the chosen commands for these databases; return by command line the exit code and stderr.

        Most of their time they wait, so several run at once; those that warm take turns.
        """
        rounds = [self.commands(database) for database in databases]
        looking = [[command] for commands, _ in rounds for command in commands if chosen(command)]
        warming = [command for _, commands in rounds for command in commands if chosen(command)]
        with ThreadPoolExecutor(max_workers=4) as pool:
            done = list(pool.map(lambda part: [self.run(command) for command in part], [warming, *looking]))
        return {
            " ".join(each.args[1:]): f"{each.returncode}: {each.stderr}" for part in done for each in part
        }

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run pgsweep as its user would."""
        return run(*command, timeout_seconds=120)

    def set_traps(self, connection: psycopg.Connection[Any], schema: str, statements: Sequence[str]) -> None:
        """Make a function, operator or view of one's own for every name in these statements."""
        text = "\n".join(statements)
        words = sorted(set(re.findall(r"\w+", text)))
        symbols = sorted(set(re.findall(r"[+\-*/<>=~!@#%^&|`?]+", text)))
        for name, parameters, result, is_set in connection.execute(_FUNCTIONS, [words]).fetchall():
            self._trap(
                connection, f'"{schema}"."{name}"', parameters, ("SETOF " if is_set else "") + result, name
            )
        for oid, name, left, right, result in connection.execute(_OPERATORS, [symbols]).fetchall():
            function = f'"{schema}".trap_{oid}'
            if self._trap(connection, function, ", ".join(filter(None, [left, right])), result, name):
                sides = (f"LEFTARG = {left}, " if left else "") + f"RIGHTARG = {right}"
                connection.execute(
                    f'CREATE OPERATOR "{schema}".{name} ({sides}, FUNCTION = {function})'.encode()
                )
        alarm = f'"{schema}".alarm'
        self._trap(connection, alarm, "", "integer", "view")
        for name in _BAIT:
            connection.execute(f'CREATE VIEW "{schema}".{name} AS SELECT {alarm}() AS relfilenode'.encode())

    def _trap(
        self, connection: psycopg.Connection[Any], function: str, parameters: str, result: str, name: str
    ) -> bool:
        end = "" if result.startswith("SETOF") or result == "void" else " NULL"
        literal = sql.Literal(f"BEGIN RAISE LOG '{SPRUNG}: %', $name${name}$name$; RETURN{end}; END")
        try:
            connection.execute(
                sql.SQL("CREATE FUNCTION {} RETURNS {} LANGUAGE plpgsql AS {}").format(
                    sql.SQL(f"{function}({parameters})"),
                    sql.SQL(result),
                    literal,
                )
            )
        except psycopg.Error:
            return False  # a type that no function of one's own may have
        self.traps += 1
        return True


def enters_others(command: Sequence[str]) -> bool:
    """Return whether a command, told one database, has sessions in the others too: for names, or to warm."""
    return (
        command[0] in ("cache", "top")
        or "--every-database" in command
        or tuple(command[:2]) in (("warm", "save"), ("warm", "restore"), ("warm", "check"))
    )


def enter(cluster: Cluster, database: str, user: str = "postgres") -> psycopg.Connection[Any]:
    """Connect without pgsweep's own ways, in autocommit mode."""
    return psycopg.connect(cluster.conninfo(database), user=user, autocommit=True, application_name="test")


def _fill(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "CREATE TABLE orders AS SELECT i AS id, repeat('x', 200) AS note FROM generate_series(1, 5000) i"
    )
    connection.execute("CREATE INDEX ON orders (id)")
    connection.execute("ANALYZE orders")


def _fill_own(connection: psycopg.Connection[Any]) -> None:
    """Make a table of the superuser's, with code that names functions without their schema."""
    connection.execute(
        """
        CREATE SCHEMA app;
        CREATE FUNCTION app.norm(varchar) RETURNS varchar LANGUAGE plpgsql IMMUTABLE
          AS 'BEGIN RETURN lower($1) || length($1); END';
        CREATE TABLE app.items (id int, note varchar CHECK (app.norm(note) <> ''));
        CREATE INDEX ON app.items (app.norm(note))
        """
    )


@pytest.fixture
def hostile(bindir: Path | None, tmp_path: Path) -> Iterator[HostileServer]:
    """A server with a database `shop`, and a database `evil` that mallory owns and has set traps in."""
    settings = {
        "shared_buffers": "8MB",
        "log_statement": "all",
        "log_line_prefix": "%c|%d|%a|",
        "autovacuum": "off",
    }
    with Cluster.create(bindir, settings) as cluster:
        server = HostileServer(cluster, tmp_path)
        with closing(enter(cluster, "postgres")) as connection:
            connection.execute("CREATE ROLE mallory LOGIN")
            connection.execute("CREATE DATABASE shop")
        with closing(enter(cluster, "shop")) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm")
            _fill(connection)
            _fill_own(connection)
        server.run_all("shop", chosen=lambda command: not enters_others(command))
        assert server.databases() == {"shop"}
        server.run_all("shop", chosen=enters_others)
        assert server.databases() > {"shop"}
        statements = [_OF_CODE, *sorted({text for sent in server.sessions().values() for text in sent})]
        with closing(enter(cluster, "postgres")) as connection:
            connection.execute("CREATE DATABASE evil OWNER mallory")
        with closing(enter(cluster, "evil")) as connection:
            connection.execute("CREATE SCHEMA extensions; GRANT USAGE ON SCHEMA extensions TO PUBLIC")
            for extension in ("pg_buffercache", "pg_prewarm"):
                connection.execute(f"CREATE EXTENSION {extension} SCHEMA extensions".encode())
            connection.execute("GRANT CREATE ON SCHEMA public TO mallory")
            _fill_own(connection)
        with closing(enter(cluster, "evil", "mallory")) as connection:
            _fill(connection)
            connection.execute("CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC")
            server.set_traps(connection, "evil", statements)
            connection.execute(
                "ALTER TABLE orders ENABLE ROW LEVEL SECURITY; ALTER TABLE orders FORCE ROW LEVEL SECURITY"
            )
            connection.execute("CREATE POLICY bait ON orders USING (evil.alarm() IS NULL)")
            connection.execute("ALTER DATABASE evil SET search_path = evil, public, pg_catalog")
        yield server
