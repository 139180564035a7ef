"""What a role, a database or the environment sets neither ends a session nor changes what it reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.errors import ConnectionFailed, MissingAbility
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session import connect as connecting
from pgsweep.pg.session.connect import (
    connect,
    read_user_path,
    session_settings,
    set_for_session,
    setting_statement,
)
from pgsweep.pg.session.conninfo import place_of
from pgsweep.pg.session.userpath import resolve_relation
from tests.fix_cli import run
from tests.fix_process import wait_until
from tests.fix_standby import PRIMARY, standby_of

TROUBLE = {
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "1ms",
    "transaction_timeout": "1ms",
    "restrict_nonsystem_relation_kind": "view, foreign-table",
    "client_min_messages": "debug5",
    "exit_on_error": "on",
    "search_path": "nowhere",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "<evil>+100",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "bytea_output": "escape",
    "work_mem": "64kB",
    "geqo_threshold": "2",
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "row_security": "off",
}
"""Settings that a role or the owner of a database may make, each of them alone and then all together."""


@contextmanager
def pair(bindir: Path | None) -> Iterator[tuple[Cluster, Cluster]]:
    """A primary, on which all may look at everything, and its hot standby."""
    with ExitStack() as ends:
        primary = ends.enter_context(Cluster.create(bindir, PRIMARY))
        primary.create_extensions("postgres", "pg_buffercache", "pg_prewarm")
        with psycopg.connect(primary.conninfo(), autocommit=True) as owner:
            owner.execute("CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher")
            owner.execute("CREATE TABLE public.orders AS SELECT generate_series(1, 1000) AS id")
        yield primary, ends.enter_context(standby_of(primary))


def as_watcher(server: Cluster) -> str:
    return make_conninfo(server.conninfo(), user="watcher")


def replayed(primary: Cluster, standby: Cluster) -> None:
    """Wait until the standby has what the primary has now."""
    with (
        psycopg.connect(primary.conninfo(), autocommit=True) as writer,
        psycopg.connect(standby.conninfo(), autocommit=True) as reader,
    ):
        # What is inserted: a commit that is not synchronous is written only later.
        lsn = writer.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        done = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: reader.execute(done, lsn).fetchone() == (True,))


@pytest.mark.slow
def test_nothing_that_a_role_sets_ends_a_session(bindir: Path | None) -> None:
    with (
        pair(bindir) as (primary, standby),
        psycopg.connect(primary.conninfo(), autocommit=True) as owner,
    ):
        known = {name for (name,) in owner.execute("SELECT name FROM pg_settings").fetchall()}
        if primary.version_num >= 190000:
            # From 19 on it cannot be switched off, and the server refuses to write that down.
            known -= {"standard_conforming_strings"}
        alone = [{name: value} for name, value in TROUBLE.items() if name in known]
        together = {name: value for one in alone for name, value in one.items()}
        for settings in (*alone, together):
            owner.execute("ALTER ROLE watcher RESET ALL")
            for name, value in settings.items():
                quoted = value if name == "search_path" else f"'{value}'"
                owner.execute(f"ALTER ROLE watcher SET {name} = {quoted}".encode())
            replayed(primary, standby)
            for server in (primary, standby):
                for inspection in (True, False):
                    target = as_watcher(server)
                    with connect(target, inspection=inspection) as session:
                        rows = session.execute("SELECT count(*) FROM pg_catalog.pg_class").fetchone()
                        assert rows is not None
                        assert rows[0] > 100, (settings, inspection)
        for server in (primary, standby):
            for command in (["doctor"], ["cache"], ["memory"], ["top", "--once"], ["warm", "plan"]):
                done = run(*command, as_watcher(server))
                assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_settings_of_libpqs_environment_do_not_change_what_is_read(
    server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATESTYLE", "German")
    monkeypatch.setenv("PGTZ", "<odd>-7")
    monkeypatch.setenv("PGOPTIONS", "-c search_path=one,\\ two -c geqo=off")
    with connect(server.conninfo()) as session:
        assert session.execute("SHOW geqo").fetchone() == ("off",)
        assert session.execute("SHOW search_path").fetchone() == ("pg_catalog",)
        assert read_user_path(session) == "one, two"
    done = run("doctor", server.conninfo())
    assert done.returncode == 0, done.stderr


def test_options_of_a_service_are_kept(
    server: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    services = tmp_path / "services"
    lines = ("[there]", f"host={server.socket_directory}", "user=postgres", "options=-c search_path=mine")
    services.write_text("\n".join(lines))
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    with connect("service=there dbname=postgres") as session:
        assert read_user_path(session) == "mine"


def test_a_backslash_at_the_end_of_the_options_means_nothing(server: Cluster) -> None:
    for options in ("-c work_mem=3MB\\", "-c application_name=a\\\\ -c work_mem=3MB"):
        with connect(make_conninfo(server.conninfo(), options=options)) as session:
            assert session.execute("SHOW work_mem").fetchone() == ("3MB",)


def test_a_host_is_chosen_by_what_it_is_not_by_our_settings(server: Cluster) -> None:
    """libpq takes a session that is read-only by default for one of a standby."""
    with connect(make_conninfo(server.conninfo(), target_session_attrs="read-write")) as session:
        assert session.execute("SHOW default_transaction_read_only").fetchone() == ("on",)
    with pytest.raises(ConnectionFailed, match="not read-only"):
        connect(make_conninfo(server.conninfo(), target_session_attrs="read-only"))


def test_an_abstract_socket_is_not_looked_up_as_a_host(bindir: Path | None) -> None:
    name = f"@pgsweep-test-{os.getpid()}"
    with Cluster.create(bindir, start=False) as cluster:
        cluster.settings["unix_socket_directories"] = f"{cluster.socket_directory}, {name}"
        cluster.start()
        target = make_conninfo(cluster.conninfo(), host=name)
        with connect(target) as session:
            assert session.info.host == name
            read_user_path(session)
        with connect(make_conninfo(target, host=f"/nowhere,{name}", port="5432,5432")) as session:
            assert session.info.host == name
        with pytest.raises(ConnectionFailed, match=f"{name}-none"):
            connect(make_conninfo(target, host=f"{name}-none"))


def test_a_host_is_chosen_as_the_environment_asks(server: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "read-write")
    connect(server.conninfo()).close()


def test_a_login_trigger_finds_its_tables_and_may_write(wheel18: Cluster) -> None:
    """One that logs who came, as in PostgreSQL's manual."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as owner:
        owner.execute("CREATE DATABASE logged")
    try:
        with psycopg.connect(wheel18.conninfo("logged"), autocommit=True) as owner:
            owner.execute("CREATE TABLE public.logins AS SELECT 0 AS pid")
            owner.execute(
                "CREATE FUNCTION public.log_in() RETURNS event_trigger LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO logins VALUES (pg_backend_pid()); END $$"
            )
            owner.execute("CREATE EVENT TRIGGER log_in ON login EXECUTE FUNCTION public.log_in()")
            with connect(wheel18.conninfo("logged")) as session:
                settings = "SELECT current_setting('search_path'), current_setting('transaction_read_only')"
                assert session.execute(settings).fetchone() == ("pg_catalog", "on")
                assert read_user_path(session) == '"$user", public'
                pid = session.info.backend_pid
            assert owner.execute("SELECT count(*) FROM logins WHERE pid = %s", [pid]).fetchone() == (1,)
            # One that forbids it is asked no more than twice, and its own words are repeated.
            owner.execute(
                "CREATE OR REPLACE FUNCTION public.log_in() RETURNS event_trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION 'not at night'; END $$"
            )
            with pytest.raises(ConnectionFailed, match="not at night"):
                connect(wheel18.conninfo("logged"))
    finally:
        with psycopg.connect(wheel18.conninfo(), autocommit=True) as owner:
            owner.execute("DROP DATABASE logged WITH (FORCE)")


def test_of_several_hosts_all_sessions_go_to_the_one_that_was_reached(
    server: Cluster, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.symlink_to(server.socket_directory)
    hosts = f"{first},{second}"
    target = make_conninfo(server.conninfo(), host=hosts, port="5432,5432")
    assert hosts in place_of(target)
    connect(target).close()
    assert place_of(target) == f"{second}, port 5432"
    # The other one is there again.
    first.symlink_to(server.socket_directory)
    with connect(target) as session:
        assert session.info.host == str(second)
    # Until the one that was reached has gone.
    second.unlink()
    with connect(target) as session:
        assert session.info.host == str(first)
    assert place_of(target) == f"{first}, port 5432"
    done = run("cache", "--source", "sql", "--json", target)
    assert json.loads(done.stdout)["provenance"]["subject"]["server"] == f"{first}, port 5432"


def test_a_login_trigger_that_sets_our_settings_is_named(wheel18: Cluster) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as owner:
        owner.execute("CREATE DATABASE set_at_login")
    target = wheel18.conninfo("set_at_login")
    try:
        with psycopg.connect(target, autocommit=True) as owner:
            owner.execute(
                "CREATE FUNCTION public.log_in() RETURNS event_trigger LANGUAGE plpgsql AS"
                " $$ BEGIN SET search_path = public; END $$"
            )
            owner.execute('CREATE EVENT TRIGGER "at login" ON login EXECUTE FUNCTION public.log_in()')
        with pytest.raises(MissingAbility) as refusal:
            connect(target)
        assert "login event trigger" in refusal.value.message
        assert "search_path" in refusal.value.message
        said = f"{refusal.value.cause} {refusal.value.hint}"
        assert "pooler" not in said
        assert """psql -d set_at_login -c 'ALTER EVENT TRIGGER "at login" DISABLE'""" in said
        assert "event_triggers=off" in said
        with connect(make_conninfo(target, options="-c event_triggers=off")) as session:
            assert session.execute("SHOW search_path").fetchone() == ("pg_catalog",)
    finally:
        with psycopg.connect(wheel18.conninfo(), autocommit=True) as owner:
            owner.execute("DROP DATABASE set_at_login WITH (FORCE)")


def test_no_query_reads_a_setting_that_every_session_sets() -> None:
    ours = "|".join(session_settings(inspection=True))
    folder = Path(connecting.__file__).parents[1] / "queries"
    found = [path.name for path in folder.glob("*.sql") if re.search(rf"'({ours})'", path.read_text(), re.I)]
    assert found == []
    assert list(folder.glob("settings_*.sql"))


def test_a_role_that_may_have_one_session_has_no_second_one_where_none_is_needed(
    server: Cluster, tmp_path: Path
) -> None:
    table = "one_session"
    with psycopg.connect(server.conninfo(), autocommit=True) as owner:
        owner.execute("CREATE ROLE narrow LOGIN CONNECTION LIMIT 1; GRANT pg_monitor TO narrow")
        owner.execute(f"CREATE TABLE public.{table} AS SELECT generate_series(1, 1000) AS id".encode())
        owner.execute(f"GRANT SELECT ON public.{table} TO narrow".encode())

        def tried(*words: str) -> subprocess.CompletedProcess[str]:
            # The session of the command before ends a little after the command.
            mine = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'narrow'"
            wait_until(lambda: owner.execute(mine).fetchone() == (0,))
            return run(*words, make_conninfo(server.conninfo(), user="narrow"), cwd=tmp_path)

        try:
            for command in (
                ["doctor"], ["cache"], ["memory"], ["top", "--once"], ["warm", "plan"],
                ["warm", "save", "x.heat", "-d"],
                ["warm", "keep", f"public.{table}", "--budget", "1MB", "--for", "0.1s", "-d"],
                ["record", "--source", "sql", "--for", "1s", "-o", "x.evidence", "-d"],
            ):  # fmt: skip
                done = tried(*command)
                assert done.returncode == 0, (command, done.stdout, done.stderr)
            # What needs another session says so, and how else.
            done = tried("warm", "keep", table, "--budget", "1MB", "--for", "0.1s", "-d")
            assert done.returncode == 3
            said = " ".join(done.stderr.split())
            assert "pgsweep may need two" in said
            assert "write the name with its schema" in said
        finally:
            owner.execute(f"DROP TABLE public.{table}; DROP OWNED BY narrow; DROP ROLE narrow".encode())


def test_a_name_needs_no_path_of_the_session(server: Cluster) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as owner:
        owner.execute("CREATE SCHEMA sessions_a; CREATE TABLE sessions_a.here ()")
        try:
            options = "-c search_path=sessions_a"
            with connect(make_conninfo(server.conninfo(), options=options)) as session:
                assert resolve_relation(session, "here") == resolve_relation(session, "sessions_a.here")
                sources = session.execute("SELECT name FROM pg_settings WHERE source = 'session'").fetchall()
                assert sources == []
        finally:
            owner.execute("DROP SCHEMA sessions_a CASCADE")


def test_a_session_gives_its_settings_back_before_it_ends(server: Cluster) -> None:
    options = "-c log_statement=all -c log_min_duration_statement=-1"
    begin = len(server.log_path.read_bytes())
    with connect(make_conninfo(server.conninfo(), options=options)) as session:
        before = session.execute("SHOW work_mem").fetchone()
        set_for_session(session, work_mem="7MB")
        set_for_session(session, work_mem="8MB", lock_timeout="5s")
        assert session.execute("SHOW work_mem").fetchone() == ("8MB",)
        # Whatever the session is left in.
        session.execute("BEGIN")
        with pytest.raises(psycopg.errors.DivisionByZero):
            session.execute("SELECT 1 / 0")
    assert before is not None
    last = "".join(server.log_path.read_bytes()[begin:].decode().splitlines()[-2:])
    assert f"set_config('work_mem', '{before[0]}', false)" in last
    assert "set_config('lock_timeout', '2s', false)" in last
    with connect(server.conninfo()) as session:
        assert session.execute("SHOW work_mem").fetchone() == before


def test_a_statement_that_reaches_another_session_sets_nothing(server: Cluster) -> None:
    """As behind a pooler that gives the next statement to another session."""
    with connect(server.conninfo()) as mine, connect(server.conninfo()) as other:
        before = other.execute("SHOW work_mem").fetchone()
        assert other.execute(setting_statement(work_mem="7MB"), [mine.info.backend_pid]).fetchone() == (
            *(before or ()),
            None,
        )
        assert other.execute("SHOW work_mem").fetchone() == before
