"""The comparisons of this suite find what they are for: harm that is done on purpose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest

from pgsweep.pg.session.connect import connect
from tests.fix_process import wait_until
from tests.harm.fix_poolers import OURS, used
from tests.harm.fix_world import DATABASE, World

pytestmark = [pytest.mark.slow]


def sql(statement: str) -> Callable[[World], object]:
    """Return an action: a statement on the server itself."""

    def act(world: World) -> None:
        with psycopg.connect(world.server.conninfo(DATABASE), autocommit=True) as connection:
            connection.execute(statement.encode())

    return act


HARM: dict[str, tuple[Callable[[World], object], str, Callable[[World], object]]] = {
    "a row": (
        sql("INSERT INTO app.other VALUES (0)"),
        "rows: app.other",
        sql("DELETE FROM app.other WHERE id = 0"),
    ),
    "a row written anew": (sql("UPDATE app.other SET id = 5 WHERE id = 5"), "rows: app.other", sql("SELECT")),
    "an index": (sql("CREATE INDEX harmful ON page (id)"), "harmful", sql("DROP INDEX harmful")),
    "a role": (sql("CREATE ROLE harmful"), "role: harmful", sql("DROP ROLE harmful")),
    "a setting": (
        sql("ALTER SYSTEM SET work_mem = '9MB'"),
        "postgresql.auto.conf",
        sql("ALTER SYSTEM RESET work_mem"),
    ),
    "a slot": (
        sql("SELECT pg_create_physical_replication_slot('harmful')"),
        "replication slot: harmful",
        sql("SELECT pg_drop_replication_slot('harmful')"),
    ),
    "a prepared transaction": (
        sql("BEGIN; INSERT INTO app.other VALUES (0); PREPARE TRANSACTION 'harmful'"),
        "prepared transaction: harmful",
        sql("ROLLBACK PREPARED 'harmful'"),
    ),
    "statistics": (sql("SELECT pg_stat_reset()"), "statistics of: shop since", sql("SELECT")),
    "a file": (lambda world: (world.root / "tmp/harmful").touch(), "tmp/harmful", World.clear),
    "a segment": (lambda world: (world.root / "shm/harmful").touch(), "shm/harmful", World.clear),
    "a file of the home": (lambda world: (world.home / "harmful").touch(), "home/harmful", World.clear),
    "a file of the server": (
        lambda world: (world.server.data_directory / "harmful").touch(),
        "data/harmful",
        lambda world: (world.server.data_directory / "harmful").unlink(),
    ),
    "a mode": (
        lambda world: (world.server.data_directory / "pg_hba.conf").chmod(0o644),
        "pg_hba.conf -rw-r--r--",
        lambda world: (world.server.data_directory / "pg_hba.conf").chmod(0o600),
    ),
}


@pytest.mark.parametrize("name", HARM)
def test_harm_is_found(name: str, world: World) -> None:
    act, words, undo = HARM[name]
    world.clear()
    before = world.look()
    act(world)
    try:
        assert any(words in line for line in before.differences(world.look()))
    finally:
        undo(world)


def test_a_session_that_stays_is_found(world: World) -> None:
    world.clear()
    before = world.look()
    with connect(world.server.conninfo(DATABASE)):
        assert any("session: pgsweep in shop" in line for line in before.differences(world.look()))
    assert world.settled(before) == []


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SET work_mem = '9MB'", "setting: work_mem"),
        ("SET app.tenant = '43'", "tenant: 43"),
        ("RESET ROLE", "role: postgres as postgres"),
        ("PREPARE harmful AS SELECT 2", "prepared statement: harmful"),
        ("CREATE TEMPORARY TABLE harmful (id int)", "temporary relation: harmful"),
        ("LISTEN harmful", "channel: harmful"),
        ("SELECT pg_advisory_unlock_all()", "advisory lock"),
        ("CLOSE ALL", "cursor: app_cursor"),
    ],
)
def test_harm_to_a_session_is_found(statement: str, words: str, world_through: Callable[..., World]) -> None:
    world = world_through(OURS["the server's key, sessions"])
    used(world)
    before = world.look(sessions_only=True)
    with psycopg.connect(world.target, autocommit=True) as harmful:
        harmful.execute(statement.encode())
    assert any(words in line for line in before.differences(world.look(sessions_only=True)))


def test_processes_are_found_that_outlive_their_parent(world: World) -> None:
    started = world.begin("completion", "bash")
    started.command.communicate(timeout=60)
    assert started.processes() == []
    code = (
        f"import resource, socket, time; mark = ({started.mark},) * 2\n"
        "resource.setrlimit(resource.RLIMIT_MSGQUEUE, mark)\n"
        "listener = socket.create_server(('127.0.0.1', 0)); time.sleep(600)"
    )
    with subprocess.Popen(["setsid", sys.executable, "-c", code]) as left:
        try:
            wait_until(started.listening, why="the listener is not found")
            assert left.pid in started.processes()
        finally:
            left.kill()
