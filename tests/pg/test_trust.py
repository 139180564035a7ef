"""Extensions of untrusted owners and poolers are refused; names that users type mean what psql means."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.doctor import examine
from pgsweep.errors import MissingAbility, UsageError
from pgsweep.pg import queries
from pgsweep.pg.catalog.server import require_buffercache
from pgsweep.pg.prewarm import require_prewarm
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.trust import find_distrust
from pgsweep.pg.session.userpath import resolve_relation
from tests.fix_cli import run
from tests.fix_cluster import own_database
from tests.fix_hostile import enter
from tests.fix_process import wait_until

MALLORY, WATCHER = "trust_mallory", "trust_watcher"
EXTENSIONS = """
CREATE SCHEMA extensions;
GRANT USAGE ON SCHEMA extensions TO PUBLIC;
CREATE EXTENSION pg_buffercache SCHEMA extensions;
CREATE EXTENSION pg_prewarm SCHEMA extensions;
"""


@pytest.fixture
def database(server: Cluster) -> Iterator[str]:
    """A database of mallory's, with both extensions in a schema of the superuser's."""
    with closing(enter(server, "postgres")) as admin:
        for role in (MALLORY, WATCHER):
            admin.execute(f"CREATE ROLE {role} LOGIN".encode())
        admin.execute(f"GRANT pg_monitor TO {WATCHER}".encode())
        with own_database(server, "trust", EXTENSIONS, owner=MALLORY):
            yield "trust"
        for role in (MALLORY, WATCHER):
            admin.execute(f"DROP ROLE {role}".encode())


def test_extensions_of_superusers_are_used(server: Cluster, database: str) -> None:
    with connect(server.conninfo(database)) as session:
        assert require_buffercache(session) == "extensions"
        assert require_prewarm(session) == "extensions"


def test_the_schema_of_an_extension_must_have_a_trusted_owner_where_a_superuser_uses_it(
    server: Cluster, database: str
) -> None:
    with closing(enter(server, database)) as admin:
        admin.execute(f"ALTER SCHEMA extensions OWNER TO {MALLORY}".encode())
    with connect(server.conninfo(database)) as session:
        with pytest.raises(MissingAbility) as refused:
            require_buffercache(session)
        assert "not safe for a superuser" in refused.value.message
        assert MALLORY in str(refused.value.cause)
        with pytest.raises(MissingAbility, match="not safe for a superuser"):
            require_prewarm(session)
        found = find_distrust(session, "pg_buffercache", ["pg_buffercache"])
    # A role that is not a superuser takes that risk for its own rights only.
    with connect(make_conninfo(server.conninfo(database), user=WATCHER)) as session:
        assert require_buffercache(session) == "extensions"
    assert found is not None
    with closing(enter(server, database)) as admin:
        for statement in found.statements:
            admin.execute(statement.encode())
    with connect(server.conninfo(database)) as session:
        assert require_buffercache(session) == "superuser_extensions"


def test_a_role_that_the_database_sets_is_not_the_one_whose_rights_are_at_stake(
    server: Cluster, database: str
) -> None:
    with closing(enter(server, database)) as admin:
        admin.execute(f"ALTER SCHEMA extensions OWNER TO {MALLORY}".encode())
    with closing(enter(server, database, MALLORY)) as theirs:
        theirs.execute(f"ALTER DATABASE {database} SET role = {MALLORY}".encode())
    with pytest.raises(MissingAbility, match="runs as another role") as refused:
        connect(server.conninfo(database))
    assert "PGOPTIONS='-c role=none'" in str(refused.value.hint)
    with connect(make_conninfo(server.conninfo(database), options="-c role=none")) as session:
        assert session.execute("SELECT current_user").fetchone() == ("postgres",)
    with connect(make_conninfo(server.conninfo(database), options=f"-c role={MALLORY}")) as session:
        assert session.execute("SELECT current_user, session_user").fetchone() == (MALLORY, "postgres")
        with pytest.raises(MissingAbility, match="not safe for a superuser"):
            require_prewarm(session)


def test_a_role_that_may_become_superuser_is_treated_as_one(server: Cluster, database: str) -> None:
    with closing(enter(server, database)) as admin:
        admin.execute(f"ALTER SCHEMA extensions OWNER TO {MALLORY}; GRANT postgres TO {WATCHER}".encode())
    with (
        connect(make_conninfo(server.conninfo(database), user=WATCHER)) as session,
        pytest.raises(MissingAbility, match="not safe for a superuser"),
    ):
        require_prewarm(session)


def test_the_public_schema_belongs_to_the_owner_of_the_database(server: Cluster, database: str) -> None:
    with closing(enter(server, database)) as admin:
        admin.execute("ALTER EXTENSION pg_buffercache SET SCHEMA public")
    with connect(server.conninfo(database)) as session:
        if server.version_num >= 150000:
            with pytest.raises(MissingAbility, match="not safe for a superuser"):
                require_buffercache(session)
        else:
            assert require_buffercache(session) == "public"


def paste(server: Cluster, hint: str) -> None:
    """Run the command at the end of a hint as the superuser would."""
    words, command = hint.split(": ", 1)
    assert words == "as a superuser"
    socket_folder = str(server.socket_directory)
    env = {"PATH": f"{server.bindir}:{os.environ['PATH']}", "PGHOST": socket_folder, "PGUSER": "postgres"}
    subprocess.run(["bash", "-c", command], env=env, check=True, capture_output=True)


@pytest.mark.parametrize("taken", ["", "extensions", "public first"])
def test_a_hint_creates_an_extension_where_it_will_be_used(
    server: Cluster, database: str, taken: str
) -> None:
    """Also where the owner of the database has the schema public, and has taken the name of the safe one."""
    with closing(enter(server, database)) as admin:
        admin.execute("DROP EXTENSION pg_buffercache; DROP EXTENSION pg_prewarm")
        if taken == "extensions":
            admin.execute(f"ALTER SCHEMA extensions OWNER TO {MALLORY}".encode())
        else:
            admin.execute("DROP SCHEMA extensions")
        if taken == "public first":
            # What belongs to a superuser is as good as ever.
            admin.execute("ALTER SCHEMA public OWNER TO postgres")
    for require, used in ((require_buffercache, "pg_buffercache"), (require_prewarm, "pg_prewarm")):
        with connect(server.conninfo(database)) as session, pytest.raises(MissingAbility) as refused:
            require(session)
        hint = str(refused.value.hint)
        plain = f" -d {database} -c 'CREATE EXTENSION {used}'"
        assert hint.endswith(plain) == (server.version_num < 150000 or taken == "public first")
        paste(server, hint)
        with connect(server.conninfo(database)) as session:
            require(session)
        with connect(make_conninfo(server.conninfo(database), user=WATCHER)) as session:
            require(session)
    done = run("cache", "-d", server.conninfo(database), "--json")
    assert done.returncode == 0, done.stderr


def test_a_hint_follows_the_path_of_who_pastes_it(server: Cluster, database: str) -> None:
    with closing(enter(server, database)) as admin:
        admin.execute("DROP EXTENSION pg_prewarm; ALTER SCHEMA public OWNER TO postgres")
        admin.execute(f"CREATE SCHEMA theirs AUTHORIZATION {MALLORY}".encode())
    with closing(enter(server, database, MALLORY)) as theirs:
        theirs.execute(f"ALTER DATABASE {database} SET search_path = theirs, public".encode())
    with connect(server.conninfo(database)) as session, pytest.raises(MissingAbility) as refused:
        require_prewarm(session)
    assert "CREATE EXTENSION pg_prewarm SCHEMA extensions" in str(refused.value.hint)
    paste(server, str(refused.value.hint))
    with connect(server.conninfo(database)) as session:
        assert require_prewarm(session) == "extensions"


def test_doctor_says_how_to_create_extensions_that_it_then_finds(server: Cluster, database: str) -> None:
    with closing(enter(server, database)) as admin:
        admin.execute("DROP EXTENSION pg_buffercache; DROP EXTENSION pg_prewarm; DROP SCHEMA extensions")
    env = {"PATH": f"{server.bindir}:{os.environ['PATH']}"}
    for again in (False, True):
        found = {one.name: one for one in examine(server.conninfo(database)).abilities}
        for name in ("pg_buffercache", "pg_prewarm"):
            assert found[name].available is again, found[name].why
            if not again:
                subprocess.run(["bash", "-c", str(found[name].enable)], env=env, check=True)


def test_an_extension_that_somebody_else_owns_is_refused(server: Cluster, database: str) -> None:
    with closing(enter(server, database)) as admin:
        admin.execute(
            f"UPDATE pg_extension SET extowner = '{MALLORY}'::regrole WHERE extname = 'pg_prewarm'".encode()
        )
        admin.execute(f"ALTER VIEW extensions.pg_buffercache OWNER TO {MALLORY}".encode())
    for user in ("postgres", WATCHER):
        with connect(make_conninfo(server.conninfo(database), user=user)) as session:
            for require in (require_buffercache, require_prewarm):
                with pytest.raises(MissingAbility) as refused:
                    require(session)
                assert "is not trusted" in refused.value.message
                assert MALLORY in str(refused.value.cause)
    # For its owner it is as good as any other object of his own.
    with connect(make_conninfo(server.conninfo(database), user=MALLORY)) as session:
        assert require_prewarm(session) == "extensions"


def test_a_view_beside_the_extension_is_no_part_of_it(server: Cluster, database: str) -> None:
    with closing(enter(server, database)) as admin:
        admin.execute("ALTER EXTENSION pg_buffercache DROP VIEW extensions.pg_buffercache")
    with connect(server.conninfo(database)) as session, pytest.raises(MissingAbility, match="not trusted"):
        require_buffercache(session)


def test_a_name_means_what_it_means_in_the_users_own_session(server: Cluster, database: str) -> None:
    with closing(enter(server, database)) as admin:
        admin.execute(
            'CREATE SCHEMA "Own Path"; CREATE TABLE "Own Path".orders (id int); CREATE TABLE orders (id int)'
        )
        admin.execute(f'ALTER DATABASE {database} SET search_path = "Own Path", public'.encode())
        oids = dict(admin.execute("SELECT relnamespace::regnamespace::text, oid::int8 FROM pg_class "
                                  "WHERE relname = 'orders'").fetchall())  # fmt: skip
    with connect(server.conninfo(database)) as session:
        assert resolve_relation(session, "orders") == oids['"Own Path"']
        assert resolve_relation(session, "public.orders") == oids["public"]
        for name in ("nowhere", "no.such.thing.at.all", '"unended', "", "nowhere.orders"):
            with pytest.raises(UsageError):
                resolve_relation(session, name)
        path = session.execute("SHOW search_path").fetchone()
        assert path == ("pg_catalog",)


@pytest.mark.parametrize("inspection", [True, False])
def test_the_search_path_is_pinned_by_the_startup_packet(server: Cluster, inspection: bool) -> None:
    with connect(server.conninfo(), inspection=inspection) as session:
        query = "SELECT setting, source FROM pg_settings WHERE name = 'search_path'"
        assert session.execute(query).fetchone() == ("pg_catalog", "client")


def test_settings_of_an_owner_do_not_change_what_statements_mean(server: Cluster, database: str) -> None:
    owners = {
        "standard_conforming_strings": "off",
        "transform_null_equals": "on",
        "extra_float_digits": "-15",
        "DateStyle": "German",
        "default_transaction_isolation": "serializable",
    }
    with closing(enter(server, database)) as admin:
        for name, value in owners.items():
            if name == "standard_conforming_strings" and server.version_num >= 190000:
                continue  # It is always on there.
            admin.execute(f"ALTER DATABASE {database} SET {name} = '{value}'".encode())
    with connect(server.conninfo(database)) as session:
        shown = session.execute(r"SELECT '\d', (NULL = NULL) IS NULL, 0.1::float8 + 0.2::float8").fetchone()
        assert shown == (r"\d", True, 0.1 + 0.2)


def test_every_function_that_a_query_calls_is_named_with_its_schema() -> None:
    words = {"coalesce", "greatest", "least", "extract", "nullif"}
    found = []
    for path in Path(queries.__file__).parent.glob("*.sql"):
        text = re.sub(r"--.*|'[^']*'", "", path.read_text(encoding="utf-8"))
        called = re.findall(r"(?<![\w.'}])([a-z_][a-z0-9_]*)\(", text)
        found += [f"{path.name}: {name}" for name in called if name.lower() not in words]
    assert not found


@pytest.fixture
def pooled(server: Cluster) -> Iterator[str]:
    """A connection string through PgBouncer in transaction mode."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    if not Path(program).exists():
        pytest.skip("needs PgBouncer: apt-get install pgbouncer")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Where the server's user may read it.
    settings = server.run_directory / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\npostgres = host={server.socket_directory} port=5432 user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\n"
    )
    command = [program, str(settings)]
    folder = server.socket_directory
    settings.chmod(0o644)
    if folder.owner() != "root":
        command = [
            "setpriv",
            f"--reuid={folder.owner()}",
            f"--regid={folder.group()}",
            "--clear-groups",
            *command,
        ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as pooler:
        target = f"host=127.0.0.1 port={port} dbname=postgres user=postgres"

        def answers() -> bool:
            try:
                psycopg.connect(target).close()
            except psycopg.OperationalError:
                return False
            return True

        try:
            wait_until(answers, why="PgBouncer does not come up")
            yield target
        finally:
            pooler.terminate()


def test_doctor_does_not_take_a_pooler_for_an_old_server(pooled: str) -> None:
    result = examine(pooled)
    found = {ability.name: ability for ability in result.abilities}
    assert found["session"].available is False
    assert "server itself" in (found["session"].enable or "")
    assert "version" not in found
    assert {line.why for line in result.commands if line.command == "cache"} == {"the session is refused"}


def test_a_pooler_is_refused(pooled: str) -> None:
    with pytest.raises(MissingAbility) as refused:
        connect(pooled)
    assert "pooler" in refused.value.message
    assert "server itself" in str(refused.value.hint)
