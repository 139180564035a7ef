"""Answers that PostgreSQL does not give, through a proxy that changes those of a real server."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pgsweep.errors import ConnectionFailed, PgsweepError, UnexpectedAnswer
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.store import Evidence
from pgsweep.pg.catalog.counters import CounterReader
from pgsweep.pg.catalog.server import read_relations, read_server
from pgsweep.pg.prewarm import Prewarm
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.private.sharedmemory import read_facts
from pgsweep.pg.queries import load, name_of
from pgsweep.pg.session import connect as connecting
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.shapes import shape_of
from pgsweep.pg.session.trust import statements_to_create
from pgsweep.warm.block_ranges import BlockRange
from tests.fix_cli import run
from tests.fix_process import busyness
from tests.fix_proxy import Plan, Proxy, proxy_before
from tests.fix_recording import WhenRecording, a_snapshot_seconds
from tests.fuzz.targets import server as target

QUERIES = Path(connecting.__file__).parents[1] / "queries"


def test_every_query_has_a_shape_and_is_known_by_its_beginning() -> None:
    files = sorted(QUERIES.glob("*.sql"))
    beginnings = set()
    for file in files:
        name, _, version = file.stem.rpartition("_")
        text = load(name, int(version))
        assert text == file.read_text()
        beginnings.add(text[:64])
        assert name_of(text) == name
        assert name_of(text.encode()) == name
        assert shape_of(name) is not None, f"{file.name} has no shape in pg/queries/shapes.toml"
    assert len(beginnings) == len(files)
    assert name_of("SELECT 1") is None
    assert name_of(b"SELECT 1") is None


@pytest.mark.parametrize(
    ("query", "rows", "fault"),
    [
        ("databases", [(0, b""), (5, b"postgres")], None),
        (
            "server",
            [(180006, "18.6", 3000, 16384, 5, b"shop", 10, False)],
            "column 3 is not of the kind `blocksize`",
        ),
        ("server", [(180006, "18.6", 8192, 16384, 5, b"shop", 10, False)], None),
        ("databases", [(-1, b"")], "column 1 is not of the kind `oid`"),
        ("databases", [(2**32, b"")], "column 1 is not of the kind `oid`"),
        ("databases", [(1, "text")], "column 2 is not of the kind `bytes`"),
        ("databases", [(1, None)], "column 2 is not of the kind `bytes`"),
        ("databases", [(True, b"")], "column 1 is not of the kind `oid`"),
        ("databases", [(1, b"x" * (1 << 21))], "column 2 is not of the kind `bytes`"),
        ("budget", [("work_mem", 4.0)], None),
        ("budget", [("work_mem", float("nan"))], "column 2 is not of the kind `number`"),
        ("budget", [("work_mem", Decimal("inf"))], "column 2 is not of the kind `number`"),
        ("count_relations", [("16384", 1, None, 3.0, Decimal(4))], None),
        ("count_relations", [("1e3", 1)], "column 1 is not of the kind `oidtext`"),
        ("chosen", [("r", "p", [1, 2], 3)], None),
        ("chosen", [("r", "p", [1, None], 3)], "column 3 is not of the kind `oids`"),
        ("counted_since", [(1_700_000_000_000_000,)], None),
        ("counted_since", [("now",)], "column 1 is not of the kind `time`"),
        ("relations", [], None),
        ("settle", [("",)], None),
        ("settle", [(1,)], None),
        ("settle", [(b"",)], "column 1 is not of the kind `any`"),
    ],
)
def test_rows_are_judged_by_type_and_range(query: str, rows: list[Any], fault: str | None) -> None:
    shape = shape_of(query)
    assert shape is not None
    assert shape.fault(rows) == fault


def test_numbers_of_rows_and_columns_are_judged() -> None:
    server, relation, io = shape_of("server"), shape_of("relation"), shape_of("count_io")
    assert server is not None
    assert relation is not None
    assert io is not None
    assert server.fault_of_result(1, 8) is None
    assert server.fault_of_result(0, 8) == "0 rows, not one"
    assert server.fault_of_result(1, 7) == "7 columns, not 8"
    assert relation.fault_of_result(0, 9) is None
    assert relation.fault_of_result(2, 9) == "2 rows, not one"
    assert io.fault_of_result(100, 15) is None
    assert io.fault_of_result(100, 1) == "1 columns, not 2"


@pytest.fixture(scope="module")
def proxied(wheel18: Cluster) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the shared server, and the conninfo of a session through it."""
    with proxy_before(wheel18) as made:
        yield made


def test_an_honest_proxy_changes_nothing(proxied: tuple[Proxy, str]) -> None:
    proxy, conninfo = proxied
    proxy.plan = Plan(0, 0.0)
    with connect(conninfo) as connection, explained():
        assert read_server(connection).block_size_bytes == 8192
        assert len(read_relations(connection)) > 100


def test_changed_rows_are_one_sentence(proxied: tuple[Proxy, str]) -> None:
    """Of many seeds each ends as it should or in an error in words, and some do in that of an answer."""
    proxy, conninfo = proxied
    unexpected = 0
    for seed in range(60):
        proxy.plan = Plan(seed, 0.05, rough=0.0)
        try:
            with connect(conninfo) as connection, explained():
                read_server(connection)
                read_relations(connection)
        except UnexpectedAnswer as error:
            unexpected += 1
            assert error.cause is not None
            assert "proxy" in error.cause
            assert error.hint is not None
        except PgsweepError:
            pass
    assert unexpected > 20


def test_the_command_line_says_it_in_words(proxied: tuple[Proxy, str]) -> None:
    proxy, conninfo = proxied
    reported = ""
    for seed in range(20):
        proxy.plan = Plan(seed, 0.3, skip=20, rough=0.0)
        done = run("cache", conninfo)
        assert "Traceback" not in done.stderr
        assert "unexpected error in pgsweep" not in done.stderr
        reported = done.stderr
        if "the server's answer is not what PostgreSQL 18 gives" in reported:
            break
    assert "error: the server's answer is not what PostgreSQL 18 gives" in reported
    assert "cause: a proxy in between changes answers" in reported
    assert "hint: connect to the server itself" in reported


def test_a_server_that_falls_silent_is_not_waited_for(
    wheel18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own limit would end the statement; where its word for it does not come, ours does."""
    monkeypatch.setattr(connecting, "_STATEMENT_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(connecting, "_GRACE_SECONDS", 0.5)
    with connect(wheel18.conninfo()) as connection:
        pid = connection.info.backend_pid
        assert connection.execute("SELECT 1").fetchone() == (1,)
        os.kill(pid, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            with pytest.raises(ConnectionFailed, match="has not answered in time"), explained():
                connection.execute("SELECT 1")
            assert time.monotonic() - begin < 30 * busyness()
            assert connection.closed
        finally:
            os.kill(pid, signal.SIGCONT)
    with connect(wheel18.conninfo(), inspection=False) as connection:
        assert connection.execute("SELECT pg_sleep(1.5)").fetchone() is not None


def test_a_recording_keeps_what_it_has_when_answers_change(
    proxied: tuple[Proxy, str], tmp_path: Path
) -> None:
    proxy, conninfo = proxied
    proxy.plan = plan = Plan(1, 0.0, rough=0.0)
    changing = WhenRecording(lambda: setattr(plan, "rate", 1.0), after_seconds=a_snapshot_seconds())
    result = record_sql(conninfo, tmp_path / "a.evidence", seconds=60, progress=changing)
    changing.join()
    assert result.ended_by == "refused"
    assert any("The evidence ends there" in warning for warning in result.warnings)
    evidence = Evidence.open(tmp_path / "a.evidence")
    assert evidence.complete
    assert len(evidence.table("snapshot_times")["snapshot"]) == result.snapshots > 0


def test_counters_of_relations_that_nobody_asked_for_are_left_out(
    wheel18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`warm plan` ended in a KeyError: 26."""
    answer = "SELECT o::text AS object, 7 AS blks_hit FROM pg_catalog.unnest(%s::oid[] || '{26}'::oid[]) AS o"

    def other(name: str, version_num: int) -> str:
        text = load(name, version_num)
        return f"{text.splitlines()[0]}\n{answer}" if name == "count_relations" else text

    monkeypatch.setattr("pgsweep.pg.catalog.counters.load", other)
    with connect(wheel18.conninfo()) as connection:
        found = CounterReader(connection, {}, [1259]).relations()
    assert [(one.object, one.value) for one in found] == [("1259", 7.0)]


def test_a_sum_of_shared_memory_may_be_missing(wheel18: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hugepages` ended in a TypeError."""

    def other(name: str, version_num: int) -> str:
        return "SELECT NULL" if name == "shared_memory_sum" else load(name, version_num)

    monkeypatch.setattr("pgsweep.pg.private.sharedmemory.load", other)
    with connect(wheel18.conninfo()) as connection:
        assert read_facts(connection).requested_bytes is None


def test_blocks_are_read_only_where_they_were_asked_for(
    wheel18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`warm plan` ended in an IndexError."""
    wheel18.create_extensions("postgres", "pg_prewarm")
    piece = BlockRange(
        database="postgres",
        oid=1259,
        schema="pg_catalog",
        relation="pg_class",
        kind="table",
        fork="main",
        first_block=0,
        blocks=1,
    )
    with connect(wheel18.conninfo()) as connection:
        prewarm = Prewarm(connection, "buffer")
        assert prewarm.read([piece]) == [(1, 1)]
        asked = prewarm._arguments
        monkeypatch.setattr(prewarm, "_arguments", lambda stretches: asked([*stretches, *stretches]))
        with pytest.raises(UnexpectedAnswer, match="2 rows for 1 stretches"):
            prewarm.read([piece])


@pytest.mark.parametrize("answer", ["'public', true, false", "'other', false, false"])
def test_schemas_that_a_server_says_nothing_of_are_not_taken_for_safe(
    answer: str, wheel18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hints ended in a KeyError: 'pgsweep_extensions'."""
    asked = f"SELECT {answer} WHERE %s::text[] IS NOT NULL"
    monkeypatch.setattr(
        "pgsweep.pg.session.rows.load",
        lambda name, *own: asked if name == "schema_trust" else load(name, *own),
    )
    with connect(wheel18.conninfo()) as connection:
        statements = statements_to_create(connection, "pg_prewarm")
    assert statements[-1] == "CREATE EXTENSION pg_prewarm SCHEMA pgsweep_extensions"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", range(len(target.COMMANDS)), ids=lambda n: " ".join(target.COMMANDS[n][:2])
)
def test_every_command_survives_a_changed_server(command: int, tmp_path: Path) -> None:
    """Each command; tests/test_fuzz.py runs the fuzzing target on more, and notices what takes too long."""
    target.seeds()
    chance = random.Random(command)
    words = target.run_one(target.INPUT.pack(0, 0, 0, command), Path(tempfile.mkdtemp(dir=tmp_path)))
    assert words is not None and words.endswith("as it was")
    for number in range(4):
        workdir = tmp_path / str(number)
        workdir.mkdir()
        data = target.mutate(b"", chance)[:-1] + bytes([command])
        try:
            target.run_one(data, workdir)
        except PgsweepError as error:
            assert error.message
