"""Answers of a server: every command that inspects one, through a proxy that changes what the server says."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random

import psycopg

from pgsweep.cache.top import live
from pgsweep.cli.app import application
from pgsweep.cli.settings import Settings
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session import connect, refusals, wire
from tests.fix_initdb import TEMPLATES, share_templates
from tests.fix_proxy import Plan, Proxy, proxy_before
from tests.fix_seeds import evidence

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("doctor",),
    ("doctor", "--json"),
    ("cache",),
    ("cache", "--source", "sql", "--csv"),
    ("cache", "--by", "database"),
    ("top", "--once", "--interval", "0.1s"),
    ("top", "--once", "--interval", "0.1s", "--source", "sql"),
    ("memory",),
    ("memory", "budget"),
    ("hugepages",),
    ("record", "--source", "sql", "--for", "0.3s", "--out", "{workdir}/x.evidence"),
    ("record", "--source", "peek", "--for", "0.3s", "--out", "{workdir}/x.evidence"),
    ("record", "--dry-run", "--source", "sql", "--out", "{workdir}/x.evidence"),
    ("warm", "plan"),
    ("warm", "plan", "--every-database", "--json"),
    ("warm", "save", "{workdir}/x.heat"),
    ("footprint", "SELECT count(*) FROM t"),
    ("advise", "{workdir}/trace.evidence", "-d"),
)
INPUT = struct.Struct("<IHBB")
_RATES = (0.0, 0.001, 0.004, 0.02, 0.1)


def seeds() -> list[bytes]:
    """Return one input a command that changes nothing, and one that changes much; start the server."""
    _server()
    return [INPUT.pack(number, 0, rate, number) for number in range(len(COMMANDS)) for rate in (0, 4)]


def mutate(_data: bytes, random: Random) -> bytes:
    command = random.randrange(len(COMMANDS))
    return INPUT.pack(
        random.getrandbits(32),
        random.choice((0, 0, 10, 30, 100, 400)),
        random.randrange(1, len(_RATES)),
        command,
    )


def run_one(data: bytes, workdir: Path) -> str | None:
    seed, skip, rate, command = INPUT.unpack(data)
    return run_command(COMMANDS[command], Plan(seed, _RATES[rate], skip), workdir)


def run_command(command: tuple[str, ...], plan: Plan, workdir: Path) -> str:
    """Run one command through the proxy; return its words and what was changed last."""
    proxy, conninfo = _server()
    proxy.plan = plan
    words = [word.format(workdir=workdir) for word in command]
    if command[0] == "advise":
        evidence(workdir, "trace")
    try:
        with _silent(), _impatient():
            application.main(
                [*words, conninfo], "pgsweep", standalone_mode=False, obj=Settings(arguments=words)
            )
    except psycopg.Error as error:
        # As the command line does with what nobody has explained before.
        raise refusals.translate(error) from error
    finally:
        proxy.cut()
    return f"{' '.join(words[:2])}: {plan.changes[-1] if plan.changes else 'as it was'}"


@cache
def _server() -> tuple[Proxy, str]:
    """Return the proxy of this process, before a server of its own."""
    if TEMPLATES in os.environ:
        share_templates(os.getpid())
    ends = contextlib.ExitStack()
    atexit.register(ends.close)
    cluster = ends.enter_context(Cluster.create(None, {"shared_buffers": "512kB", "autovacuum": "off"}))
    cluster.create_extensions("postgres", "pg_buffercache", "pg_prewarm")
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT i, repeat('x', 100) AS t FROM generate_series(1, 20000) AS i"
        )
        connection.execute("CREATE INDEX ON t (i)")
    return ends.enter_context(proxy_before(cluster))


@contextmanager
def _impatient() -> Iterator[None]:
    """Wait for a silent server for a second, not a minute; put all back, as tests run in this process too."""
    limits = connect._STATEMENT_TIMEOUT_SECONDS, connect._GRACE_SECONDS, connect._SETUP_SECONDS
    arriving = wire._ARRIVING_SECONDS, wire._LONGEST_ARRIVING_SECONDS, wire._WORK_SECONDS
    shares = live._POOL_SHARE, live._COUNTERS_SHARE, live._BLOCKS_SHARE
    connect._STATEMENT_TIMEOUT_SECONDS, connect._GRACE_SECONDS, connect._SETUP_SECONDS = 0.8, 0.2, 1.0
    wire._ARRIVING_SECONDS, wire._LONGEST_ARRIVING_SECONDS, wire._WORK_SECONDS = 0.6, 0.9, 0.5  # type: ignore[misc]
    # Between two looks by SQL `top` waits for many times what one took, which on a busy machine is long.
    live._POOL_SHARE = live._COUNTERS_SHARE = live._BLOCKS_SHARE = 1.0  # type: ignore[misc]
    try:
        yield
    finally:
        connect._STATEMENT_TIMEOUT_SECONDS, connect._GRACE_SECONDS, connect._SETUP_SECONDS = limits
        wire._ARRIVING_SECONDS, wire._LONGEST_ARRIVING_SECONDS, wire._WORK_SECONDS = arriving  # type: ignore[misc]
        live._POOL_SHARE, live._COUNTERS_SHARE, live._BLOCKS_SHARE = shares  # type: ignore[misc]


@contextmanager
def _silent() -> Iterator[None]:
    former = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in former)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = former
