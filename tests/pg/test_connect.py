"""Connections: spellings as libpq's, sessions harmless, refusals explained, passwords secret."""

from __future__ import annotations

import datetime
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsweep.errors import ConnectionFailed, MissingAbility, PgsweepError, UsageError
from pgsweep.pg.catalog.abilities import read_extension
from pgsweep.pg.catalog.server import read_server
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session import open_sessions
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.conninfo import build_conninfo, describe
from pgsweep.pg.session.refusals import explained
from pgsweep.residency.access import opened
from pgsweep.residency.names import read_names
from tests.fix_cli import run
from tests.fix_process import needs_root, wait_until

SECRET = "s3cret-word"


def everything_said(error: PgsweepError) -> str:
    return f"{error.message} {error.cause} {error.hint} {error} {error.__cause__}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """A server with few connections that asks some roles for passwords."""
    settings = {"shared_buffers": "4MB", "max_connections": "4", "superuser_reserved_connections": "1"}
    with Cluster.create(settings=settings) as cluster:
        rules = cluster.data_directory / "pg_hba.conf"
        rules.write_text("local all guarded scram-sha-256\nlocal all barred reject\n" + rules.read_text())
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{SECRET}'")
            connection.execute("CREATE ROLE barred LOGIN")
            connection.execute("CREATE ROLE plain LOGIN")
            connection.execute("CREATE ROLE group_only")
            connection.execute("SELECT pg_reload_conf()")
        wait_until(lambda: refused(cluster, user="barred", password=None) is not None)
        yield cluster


def refused(cluster: Cluster, **parts: str | None) -> ConnectionFailed | None:
    try:
        connect(make_conninfo(cluster.conninfo(), **parts)).close()
    except ConnectionFailed as error:
        return error
    return None


@pytest.mark.parametrize(
    ("parts", "message", "hint"),
    [
        ({"dbname": "nowhere"}, 'database "nowhere" does not exist', "psql -l"),
        ({"user": "nobody_such"}, 'role "nobody_such" does not exist', "-U"),
        ({"user": "guarded"}, "no password supplied", "pgpass"),
        ({"user": "guarded", "password": "wr" + SECRET}, "password authentication failed", "pgpass"),
        ({"user": "barred"}, "pg_hba.conf rejects", "pg_reload_conf"),
        ({"user": "group_only"}, "not permitted to log in", "-U"),
        ({"port": "5999"}, "No such file or directory", "pg_isready"),
        ({"host": "localhost", "port": "1"}, "Connection refused", "pg_isready"),
        ({"host": "no.such.host.invalid"}, "no.such.host.invalid", "-h HOST"),
        ({"service": "unheard_of"}, "unheard_of", "pg_service.conf"),
    ],
)
def test_a_refusal_is_explained(
    guarded: Cluster, parts: dict[str, str | None], message: str, hint: str
) -> None:
    error = refused(guarded, **parts)
    assert error is not None
    assert error.exit_code == 3
    assert message in error.message
    assert error.cause
    assert hint in (error.hint or "")
    assert SECRET not in everything_said(error)
    assert "FATAL" not in error.message


def test_too_many_connections(guarded: Cluster) -> None:
    conninfo = make_conninfo(guarded.conninfo(), user="plain")
    held: list[psycopg.Connection] = []
    try:
        with pytest.raises(ConnectionFailed) as caught:
            held.extend(connect(conninfo) for _ in range(5))
        assert "taken" in (caught.value.cause or "")
    finally:
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    "text", [f"pass word={SECRET}", f"postgresql://u:{SECRET}@[::/db", "no_such_option=1"]
)
def test_a_bad_connection_string_is_usage(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        connect(text)
    assert SECRET not in everything_said(caught.value)
    assert caught.value.exit_code == 2


def test_the_password_works(guarded: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From the connection string, from the environment and from a service file: libpq reads them all."""
    conninfo = make_conninfo(guarded.conninfo(), user="guarded")
    connect(make_conninfo(conninfo, password=SECRET)).close()
    monkeypatch.setenv("PGPASSWORD", SECRET)
    connect(conninfo).close()
    monkeypatch.delenv("PGPASSWORD")
    service = tmp_path / "services"
    service.write_text(
        f"[mine]\nhost={guarded.socket_directory}\nuser=guarded\npassword={SECRET}\ndbname=postgres\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    connect("service=mine").close()


def test_an_inspection_session_is_harmless(server: Cluster) -> None:
    with connect(server.conninfo()) as connection:
        names = ("application_name", "statement_timeout", "lock_timeout", "default_transaction_read_only")
        shown = [connection.execute("SELECT current_setting(%s)", (name,)).fetchone() for name in names]
        assert shown == [("pgsweep",), ("50s",), ("2s",), ("on",)]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("CREATE TABLE unwanted ()")
    with connect(server.conninfo(), inspection=False) as connection:
        connection.execute("CREATE TEMP TABLE wanted ()")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "UTF8"])
def test_settings_are_read_in_a_database_of_any_encoding(server: Cluster, encoding: str) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as owner:
        owner.execute(f"CREATE DATABASE coded ENCODING '{encoding}' TEMPLATE template0".encode())
        try:
            with connect(server.conninfo("coded")) as connection:
                found = read_server(connection)
        finally:
            owner.execute("DROP DATABASE coded WITH (FORCE)")
    assert found.settings["server_encoding"] == encoding
    assert re.match(rf"{server.version_num // 10000}(\.|beta|rc)", found.version)


def test_what_the_role_has_set_for_itself_does_not_matter(
    server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c datestyle=German -c idle_session_timeout=100ms")
    with connect(server.conninfo()) as connection:
        time.sleep(0.4)
        row = connection.execute("SELECT '2026-11-22 10:00:00+00'::timestamptz").fetchone()
    assert row == (datetime.datetime(2026, 11, 22, 10, tzinfo=datetime.UTC),)


def test_the_users_own_application_name_wins(server: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGAPPNAME", "mine")
    with connect(server.conninfo()) as connection:
        assert connection.execute("SELECT current_setting('application_name')").fetchone() == ("mine",)


def test_a_missing_privilege(guarded: Cluster) -> None:
    with (
        connect(make_conninfo(guarded.conninfo(), user="plain")) as connection,
        pytest.raises(MissingAbility) as caught,
        explained(),
    ):
        connection.execute("SELECT pg_read_file('postgresql.conf')")
    assert "pg_monitor" in (caught.value.hint or "")
    assert caught.value.exit_code == 4


def test_a_lost_connection(guarded: Cluster) -> None:
    with connect(guarded.conninfo()) as victim, connect(guarded.conninfo()) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (victim.info.backend_pid,))
        with pytest.raises(ConnectionFailed, match="connection was lost"), explained():
            victim.execute("SELECT 1")
        # libpq forgets the version, by which queries are chosen.
        assert victim.info.server_version == 0
        with pytest.raises(ConnectionFailed, match="connection was lost"):
            read_extension(victim, "pg_prewarm", "pg_prewarm")


def test_flags_win_over_the_connection_string() -> None:
    both = build_conninfo("postgresql://me@there:1234/db?sslmode=disable", host="here", dbname="other")
    assert conninfo_to_dict(both) == {
        "user": "me",
        "host": "here",
        "port": "1234",
        "dbname": "other",
        "sslmode": "disable",
    }
    assert conninfo_to_dict(build_conninfo("shop", port=5433)) == {"dbname": "shop", "port": "5433"}
    assert build_conninfo() == ""


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://me:a@{SECRET}@there/db",
        f"postgresql://me:{SECRET}",
        f"postgresql://me:a/{SECRET}@there/db",
        f"host=there;port=1;password={SECRET}",
        f"host=postgresql://me:{SECRET}@there",
        f"port=postgresql://me:{SECRET}@there",
    ],
)
def test_a_password_that_is_taken_for_host_or_port_is_not_repeated(text: str) -> None:
    with pytest.raises(UsageError, match=r"the (host|port) of the connection is not valid") as caught:
        build_conninfo(text)
    assert SECRET not in f"{caught.value.message} {caught.value.cause} {caught.value.hint}"


def test_hosts_and_sockets_of_all_kinds_are_taken() -> None:
    for text in ("host=/run/a@b,there,@abstract,::1 port=1,,5432", "postgresql://[::1]:1,there:2/db"):
        assert conninfo_to_dict(build_conninfo(text)) == conninfo_to_dict(text)


def test_what_the_owner_of_the_database_has_set_does_not_matter(server: Cluster) -> None:
    settings = {"exit_on_error": "on", "TimeZone": "<evil>+100"}
    settings["idle_in_transaction_session_timeout"] = "50ms"
    with psycopg.connect(server.conninfo(), autocommit=True) as owner:
        owner.execute("CREATE DATABASE owned")
        newer = owner.execute(
            "SELECT name FROM pg_settings WHERE name IN"
            " ('transaction_timeout', 'restrict_nonsystem_relation_kind')"
        ).fetchall()
        values = {"transaction_timeout": "20s", "restrict_nonsystem_relation_kind": "view"}
        settings |= {name: values[name] for (name,) in newer}
        for name, value in settings.items():
            owner.execute(f"ALTER DATABASE owned SET {name} = '{value}'".encode())
        try:
            with connect(server.conninfo("owned")) as connection:
                shown = {
                    name: connection.execute("SELECT pg_catalog.current_setting(%s)", [name]).fetchone()
                    for name in settings
                }
        finally:
            owner.execute("DROP DATABASE owned WITH (FORCE)")
    wanted = {
        "exit_on_error": ("off",),
        "TimeZone": ("UTC",),
        "idle_in_transaction_session_timeout": ("5min",),
        "transaction_timeout": ("0",),
        "restrict_nonsystem_relation_kind": ("",),
    }
    assert shown == {name: wanted[name] for name in settings}


def test_a_transaction_timeout_of_the_database_is_named(server: Cluster) -> None:
    if server.version_num < 170000:
        pytest.skip("no transaction_timeout before 17")
    with psycopg.connect(server.conninfo(), autocommit=True) as owner:
        owner.execute("CREATE DATABASE hasty")
        owner.execute("ALTER DATABASE hasty SET transaction_timeout = '100ms'")
        try:
            with connect(server.conninfo("hasty"), inspection=False) as connection:
                connection.execute("SET transaction_timeout = '100ms'")
                with pytest.raises(PgsweepError, match="transaction timeout") as caught, explained():
                    connection.execute("SELECT pg_catalog.pg_sleep(30)")
        finally:
            owner.execute("DROP DATABASE hasty WITH (FORCE)")
    assert "a setting of the role or of the database" in str(caught.value.cause)


def test_the_description_has_no_password() -> None:
    text = describe(f"postgresql://me:{SECRET}@there:1234/db")
    assert text == "database db at there, port 1234"


@needs_root
@pytest.mark.parametrize("user", ["", "-U postgres", "-U plain"])
def test_root_is_let_in_by_peer_authentication_as_the_servers_user(user: str, tmp_path: Path) -> None:
    """As Debian's pg_hba.conf has it: `local all all peer`."""
    with Cluster.create(None, {"shared_buffers": "4MB", "max_connections": "10"}) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE ROLE plain LOGIN")
            hba = cluster.data_directory / "pg_hba.conf"
            hba.write_text("local all all peer\n")
            connection.execute("SELECT pg_reload_conf()")
            # The postmaster reads the file some time after the signal.
            loaded = "SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'peer'"
            wait_until(lambda: connection.execute(loaded).fetchone() == (1,))
        wait_until(lambda: refused_as_root(cluster))
        place = ["-h", str(cluster.socket_directory), "-d", "postgres", *user.split()]
        done = run("memory", "kernel", "--json", *place)
        version = json.loads(done.stdout)["server_version"] if done.returncode == 0 else None
        cache = run("doctor", *place)
        elsewhere = run("doctor", *place, "-d", "nodb")
    if user == "-U plain":
        # The server's user may not become any role either.
        assert version is None
        assert cache.returncode == 3
        assert "eer authentication failed" in cache.stdout
    else:
        assert version is not None
        assert "role postgres, by a Unix socket" in " ".join(cache.stdout.split())
        assert 'database "nodb" does not exist' in elsewhere.stdout + elsewhere.stderr
    assert os.geteuid() == 0


@needs_root
def test_root_is_let_in_whatever_the_words_of_the_refusal(wheel18: Cluster) -> None:
    """They are in the language of the server's lc_messages; this refusal is another than that of `peer`."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE root NOLOGIN")
        try:
            with connect(f"host={wheel18.socket_directory} dbname=postgres") as session:
                assert session.info.user == "postgres"
        finally:
            connection.execute("DROP ROLE root")
    assert os.geteuid() == 0


def refused_as_root(cluster: Cluster) -> bool:
    try:
        psycopg.connect(cluster.conninfo()).close()
    except psycopg.OperationalError as error:
        return "eer authentication failed" in str(error)
    return False


def test_hints_paste_the_users_own_server(wheel18: Cluster) -> None:
    host = str(wheel18.socket_directory)
    place = ["-h", host, "-p", "5432", "-U", "postgres"]
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE hinted")
        try:
            lacking = run("cache", *place, "--source", "sql", "hinted")
            warm = run("warm", "plan", *place, "hinted")
        finally:
            connection.execute("DROP DATABASE hinted")
    options = f"psql -h {host} -p 5432 -U postgres -d hinted"
    assert f"{options} -c 'CREATE EXTENSION pg_buffercache'" in lacking.stderr
    assert f"{options} -c 'CREATE EXTENSION pg_prewarm'" in warm.stderr
    absent = run("cache", *place, "--json", "absent")
    assert (absent.returncode, absent.stdout) == (3, "")
    assert absent.stderr.endswith("\ncode: no-database\n")
    assert f"psql -h {host} -p 5432 -U postgres -l" in absent.stderr
    gone = run("cache", "-h", "/nowhere", "-p", "5433")
    assert "pg_isready -h /nowhere -p 5433" in gone.stderr
    doctor = run("doctor", "-h", "/nowhere", "-p", "5433", "--json")
    assert "pg_isready -h /nowhere -p 5433" in doctor.stdout


def test_results_propose_commands_for_the_users_own_server(wheel18: Cluster) -> None:
    host = str(wheel18.socket_directory)
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE looker LOGIN")
        try:
            seen = run("memory", "-h", host, "-p", "5432", "-U", "looker", "postgres")
        finally:
            connection.execute("DROP ROLE looker")
    assert seen.returncode == 0
    grant = "GRANT pg_monitor TO looker"
    said = " ".join(seen.stdout.split())
    assert f"psql -h {host} -p 5432 -U postgres -d postgres -c '{grant}'" in said


def test_refusals_name_the_role_and_the_database(wheel18: Cluster) -> None:
    place = ["-h", str(wheel18.socket_directory), "-p", "5432"]
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute('CREATE ROLE "it\'s" LOGIN CONNECTION LIMIT 0; CREATE ROLE plain LOGIN')
        connection.execute('CREATE DATABASE "full"')
        connection.execute('ALTER DATABASE "full" CONNECTION LIMIT 0')
        try:
            role = run("cache", *place, "-U", "it's", "postgres").stderr
            database = run("cache", *place, "-U", "plain", "full").stderr
        finally:
            connection.execute('DROP DATABASE "full"')
            connection.execute('DROP ROLE plain; DROP ROLE "it\'s"')
    psql = f"psql -h {wheel18.socket_directory} -p 5432 -d postgres -U NAME -c"
    assert f"""{psql} 'ALTER ROLE "it'"'"'s" CONNECTION LIMIT -1'""" in " ".join(role.split())
    assert f"""{psql} 'ALTER DATABASE "full" CONNECTION LIMIT -1'""" in " ".join(database.split())


@pytest.mark.parametrize("catalog", ["pg_class", "pg_db_role_setting", "pg_namespace"])
def test_a_lock_on_a_catalog_is_not_a_host_that_does_not_answer(wheel18: Cluster, catalog: str) -> None:
    with psycopg.connect(wheel18.conninfo()) as holder:
        holder.execute(f"LOCK TABLE {catalog} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(PgsweepError) as caught, explained():
            connect(wheel18.conninfo())
    words = everything_said(caught.value)
    assert "lock timeout" in words
    assert "another session" in words
    assert "does not answer" not in words
    assert "firewall" not in words


def test_only_where_a_privilege_is_missing_another_role_is_proposed(wheel18: Cluster) -> None:
    """Not where a database is invalid, or takes no more connections."""
    made = ("is_shut", "is_full", "is_invalid")
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE visitor LOGIN IN ROLE pg_monitor")
        for name in made:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        connection.execute("REVOKE CONNECT ON DATABASE is_shut FROM public")
        connection.execute("ALTER DATABASE is_full CONNECTION LIMIT 0")
        connection.execute("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'is_invalid'")
        try:
            with opened(make_conninfo(wheel18.conninfo(), user="visitor"), pool_needed=False) as access:
                names = read_names(access, [database.oid for database in access.databases])
        finally:
            for name in made:
                connection.execute(f"DROP DATABASE {name}")
            connection.execute("DROP ROLE visitor")
    found = {entry.what.removeprefix("relations of database "): entry for entry in names.missing}
    asks = {name for name, entry in found.items() if "as a role that may" in (entry.enable or "")}
    assert asks == {"is_shut"}
    assert "CONNECTION LIMIT" in (found["is_full"].enable or "")
    assert found["is_invalid"].enable == "drop it again: DROP DATABASE"


def test_the_place_of_a_session_that_was_closed_is_waited_for(server: Cluster) -> None:
    """Its backend exits a little later, on a busy machine; nobody else's place is waited for."""
    with psycopg.connect(server.conninfo(), autocommit=True) as owner:
        owner.execute("CREATE ROLE one_place LOGIN CONNECTION LIMIT 1")
        mine = make_conninfo(server.conninfo(), user="one_place")
        try:
            with psycopg.connect(mine) as taken:
                wait_until(lambda: not open_sessions.one_is_ending())
                with pytest.raises(ConnectionFailed, match="too many connections"):
                    connect(mine)
                connect(server.conninfo()).close()
                ending = threading.Timer(0.3, taken.close)
                ending.start()
                with connect(mine) as session:
                    assert session.execute("SELECT 1").fetchone() == (1,)
                ending.join()
        finally:
            owner.execute("DROP ROLE one_place")
