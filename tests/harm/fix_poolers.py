"""Poolers before a world's server, each with one session of it for all clients."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.pg.private.cluster import Cluster
from tests.fix_cluster import answers
from tests.fix_process import wait_until
from tests.harm.fix_world import DATABASE, Application, World, a_root
from tests.harm.pooler import Behaviour, pooling


@dataclass(frozen=True)
class PgBouncer:
    """Settings of PgBouncer, beside a pool of one."""

    pool_mode: str
    reset: str = "DISCARD ALL"
    ignores: str = "options,extra_float_digits,search_path"


OURS = {
    # As pgcat, which sees no change of a setting in set_config(), and Supavisor.
    "own keys": Behaviour(),
    # As Odyssey.
    "own keys, parameters deployed, DISCARD ALL": Behaviour(startup="apply", reset="DISCARD ALL"),
    "own keys, parameters refused": Behaviour(startup="refuse"),
    # Perhaps as RDS Proxy.
    "own keys, pinned": Behaviour(turn="pinned"),
    "the server's key": Behaviour(real_key=True),
    "the server's key, parameters deployed": Behaviour(real_key=True, startup="apply"),
    "the server's key, pinned": Behaviour(real_key=True, turn="pinned", startup="refuse"),
    # As Pgpool-II, with and without its reset_query_list.
    "the server's key, sessions": Behaviour(real_key=True, turn="session"),
    "the server's key, sessions, DISCARD ALL": Behaviour(real_key=True, turn="session", reset="DISCARD ALL"),
}
PGBOUNCERS = {
    "transaction": PgBouncer("transaction"),
    "transaction, nothing ignored": PgBouncer("transaction", ignores=""),
    "session": PgBouncer("session"),
    "session, no reset": PgBouncer("session", reset=""),
    "statement": PgBouncer("statement"),
}


@contextmanager
def pgbouncer(settings: PgBouncer, folder: Path, server: Cluster) -> Iterator[str]:
    """Start PgBouncer; give the conninfo of the database through it."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("needs PgBouncer: apt-get install pgbouncer")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n{DATABASE} = host={server.socket_directory} port=5432 user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {settings.pool_mode}\ndefault_pool_size = 1\nserver_reset_query = {settings.reset}\n"
        f"ignore_startup_parameters = {settings.ignores}\nserver_idle_timeout = 0\nserver_check_delay = 600\n"
    )
    owner = server.socket_directory
    command = [program, str(configuration)]
    if owner.owner() != "root":
        user = [f"--reuid={owner.owner()}", f"--regid={owner.group()}", "--clear-groups"]
        command = ["setpriv", *user, *command]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        target = f"host=127.0.0.1 port={port} user=postgres dbname={DATABASE}"
        try:
            wait_until(lambda: answers(target), why="PgBouncer does not come up")
            yield target
        finally:
            process.terminate()


@contextmanager
def through(
    pooler: PgBouncer | Behaviour, server: Cluster, make_world: Callable[..., World], folder: Path
) -> Iterator[World]:
    """Give a world whose commands and application go through a pooler."""
    if isinstance(pooler, PgBouncer):
        context, keeps = pgbouncer(pooler, folder, server), pooler.pool_mode != "session"
    else:
        context, keeps = _ours(pooler, folder, server), pooler.turn == "transaction"
    with context as target:
        world = make_world(server, target)
        world.applications.append(Application(target, stays=keeps))
        used(world)
        try:
            yield world
        finally:
            world.applications[0].close()


@pytest.fixture(scope="package")
def world_through(
    primary: Cluster, make_world: Callable[..., World]
) -> Iterator[Callable[[PgBouncer | Behaviour], World]]:
    """Give the world of a pooler, which is started when it is first asked for."""
    made: dict[PgBouncer | Behaviour, World] = {}
    with ExitStack() as closing:

        def of(pooler: PgBouncer | Behaviour) -> World:
            if pooler not in made:
                folder = closing.enter_context(a_root())
                made[pooler] = closing.enter_context(through(pooler, primary, make_world, folder))
            return made[pooler]

        yield of


@contextmanager
def _ours(behaviour: Behaviour, folder: Path, server: Cluster) -> Iterator[str]:
    place = server.socket_directory / ".s.PGSQL.5432"
    with pooling(behaviour, folder, place, DATABASE):
        yield f"host={folder} port=5432 user=postgres dbname={DATABASE}"


def used(world: World) -> None:
    """Have the application use its session, and then a client that changes nothing.

    What the pooler itself does to a session between its clients is then done.
    """
    for application in world.applications:
        application.begin()
    innocent = make_conninfo(world.target, application_name="innocent", connect_timeout="30")
    with psycopg.connect(innocent, autocommit=True) as connection:
        connection.execute("SELECT 1")
