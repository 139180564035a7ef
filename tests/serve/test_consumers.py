"""Who uses a server: counted by pg_stat_statements, sampled without it, kept in the history."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgsweep.errors import ConnectionFailed, MissingAbility
from pgsweep.memory.processes import look, opened
from pgsweep.pg.catalog.consumers import Statement, Statements, read_active
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from pgsweep.serve import consumers as module
from pgsweep.serve import history_consumers
from pgsweep.serve.consumers import KEPT, Consumers, Key, Values, gained, largest, total_key
from pgsweep.serve.history import History, Interval
from pgsweep.serve.history_reads import read_consumers
from pgsweep.serve.storage import Store
from tests.fix_process import Patience, wait_until
from tests.fix_serve import rows_of

SECRET = "wordofpassing"


@pytest.fixture(scope="module")
def shop() -> Iterator[Cluster]:
    """A server with pg_stat_statements in a schema of an odd name, and two users."""
    settings = {"shared_buffers": "1MB", "shared_preload_libraries": "pg_stat_statements"}
    with Cluster.create(None, settings) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute('CREATE SCHEMA "odd %s"')
            connection.execute('CREATE EXTENSION pg_stat_statements SCHEMA "odd %s"')
            for user in ("reader", "idler", "watcher"):
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(user)))
            connection.execute("CREATE TABLE page AS SELECT g AS id, repeat('x', 1800) AS filler"
                               " FROM generate_series(1, 4000) AS g")  # fmt: skip
            connection.execute("GRANT SELECT ON page TO reader, idler")
        yield cluster


def as_user(cluster: Cluster, user: str) -> str:
    return make_conninfo(cluster.conninfo(), user=user)


@contextmanager
def working(conninfo: str, statement: str) -> Iterator[int]:
    """Execute a statement again and again in a session of its own until the block ends; its process id."""
    ended = threading.Event()
    with psycopg.connect(conninfo, autocommit=True) as connection:

        def work() -> None:
            while not ended.is_set():
                connection.execute(statement.encode())

        worker = threading.Thread(target=work)
        worker.start()
        try:
            yield connection.info.backend_pid
        finally:
            ended.set()
            worker.join(30)


def next_interval(gathered: Consumers, has: Key | None = None) -> tuple[float, dict[Key, Values]]:
    """Return the interval at hand as soon as it is over, or the first one that has a consumer.

    Where the server's answers are slow the statements are read less often: then a later interval has them.
    """
    found: list[tuple[float, dict[Key, Values]]] = []

    def is_over() -> bool:
        found.extend(filter(None, [gathered.interval()]))
        return bool(found) and (has is None or has in found[-1][1])

    wait_until(is_over)
    return found[-1]


def of_kind(rows: dict[Key, Values], kind: str) -> dict[Key, Values]:
    return {key: values for key, values in rows.items() if key[0] == kind}


def test_reads_are_those_of_who_brought_them(shop: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.5)
    monkeypatch.setattr(module, "_SHARE", 1.0)
    scan = f"SELECT count(*) FROM public.page WHERE filler <> '{SECRET}'"
    with connect(shop.conninfo()) as session, psycopg.connect(as_user(shop, "reader")) as reader:
        gathered = Consumers(session, texts=True)
        gathered.sample()
        for _ in range(3):
            reader.execute(scan.encode())
        # Two statements of a user that reads nothing, one of them with a secret that is no constant.
        with psycopg.connect(shop.conninfo(), autocommit=True) as other:
            other.execute(f"ALTER ROLE idler PASSWORD '{SECRET}'".encode())
            other.execute("SELECT 1 + 1")
        seconds, rows = next_interval(gathered, ("user", "reader", "", ""))
    assert seconds >= 0.5
    assert gathered.missing == []
    users = of_kind(rows, "user")
    reads = users["user", "reader", "", ""]["reads"]
    # 4000 rows, four to a page; the pool has 128 buffers.
    assert 2500 <= reads <= 3300
    assert users["user", "reader", "", ""]["calls"] >= 3
    assert rows[total_key()]["reads"] == pytest.approx(sum(v.get("reads", 0) for v in users.values()))
    statements = of_kind(rows, "statement")
    most = max(statements, key=lambda key: statements[key].get("reads", 0.0))
    assert most[1:3] == ("reader", "postgres")
    assert gathered.texts[int(most[3])] == "SELECT count(*) FROM public.page WHERE filler <> $1"
    assert SECRET not in str(gathered.texts)
    assert "(not a query)" in gathered.texts.values()


def test_entries_that_were_given_up_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they counted since the last reading is lost: the figures are lower bounds."""
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.5)
    monkeypatch.setattr(module, "_SHARE", 1.0)
    settings = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.max": "100"}
    with Cluster.create(None, settings) as cluster, connect(cluster.conninfo()) as session:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as other:
            other.execute("CREATE EXTENSION pg_stat_statements")
            gathered = Consumers(session, texts=False)
            gathered.sample()
            next_interval(gathered)
            assert gathered.missing == []
            for count in range(1, 160):
                other.execute(f"SELECT {', '.join('1' * count)}".encode())
        next_interval(gathered)
        [missing] = gathered.missing
        assert "have used more than is shown" in missing.why
        assert "pg_stat_statements.max is 100" in missing.why


def test_a_database_that_is_renamed_and_dropped_counts_once(
    shop: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entries stay in pg_stat_statements, with all that they counted, and without a name in the end."""
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.5)
    monkeypatch.setattr(module, "_SHARE", 1.0)
    with connect(shop.conninfo()) as session, psycopg.connect(shop.conninfo(), autocommit=True) as other:

        def calls() -> dict[str, float]:
            _, rows = next_interval(gathered)
            found = {database: v["calls"] for (_, _, database, _), v in of_kind(rows, "database").items()}
            return {name: found[name] for name in found if name not in ("postgres", "")}

        other.execute("CREATE DATABASE tmp")
        gathered = Consumers(session, texts=False)
        gathered.sample()
        with psycopg.connect(shop.conninfo("tmp"), autocommit=True) as inside:
            for _ in range(20):
                inside.execute("SELECT 1")
        assert calls() == {"tmp": 20.0}
        other.execute("ALTER DATABASE tmp RENAME TO gone")
        assert calls() == {}
        other.execute("DROP DATABASE gone")
        assert calls() == {}
        # It was dropped before it was seen: what it was called is not known.
        unknown = Consumers(session, texts=False)
        unknown._last = {}
        unknown._read_statements()
        assert unknown._rows["database", "", "(dropped)", ""]["calls"] == 20.0


def test_what_is_executed_now_is_sampled(shop: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 2.0)
    monkeypatch.setattr(module, "_SHARE", 1.0)
    conninfo = as_user(shop, "reader")
    with working(conninfo, "SELECT pg_sleep(0.5)") as pid, opened(shop.conninfo()) as local:
        gathered = Consumers(local.connection, texts=False)
        found = None
        until = Patience(60)
        while found is None:
            assert until.left() > 0
            gathered.sample()
            time.sleep(0.1)  # between two samples of what is executed
            gathered.remember_memory(look(local).processes)
            found = gathered.interval()
        active = [each for each in read_active(local.connection) if each.pid == pid]
    seconds, rows = found
    backend = rows["backend", "reader", "postgres", str(pid)]
    assert 0.3 * seconds <= backend["active_seconds"] <= 1.05 * seconds
    assert backend["read_wait_seconds"] == 0
    assert 100_000 < backend["memory_byte_seconds"] / seconds < 50 << 20
    assert rows["user", "reader", "", ""]["active_seconds"] == backend["active_seconds"]
    assert gathered.texts == {}
    assert all(each.query_id is not None for each in active), "pg_stat_statements computes ids"


def test_without_the_extension_or_the_right_the_rest_is_shown(
    shop: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.2)
    with psycopg.connect(shop.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
    with connect(shop.conninfo("bare")) as session:
        gathered = Consumers(session, texts=True)
        gathered.sample()
        _, rows = next_interval(gathered)
        assert "reads" not in rows[total_key()]
        assert [each.what for each in gathered.missing] == ["pg_stat_statements"]
        assert "does not exist" in gathered.missing[0].why
        assert "CREATE EXTENSION" in (gathered.missing[0].enable or "")
    with connect(as_user(shop, "watcher")) as session, pytest.raises(MissingAbility, match="may not"):
        Statements(session)
    with psycopg.connect(shop.conninfo(), autocommit=True) as connection:
        connection.execute('GRANT USAGE ON SCHEMA "odd %s" TO watcher')
    with connect(as_user(shop, "watcher")) as session:
        # Without pg_monitor the ids of others' statements are hidden, and their counters are not.
        hidden = [each for each in Statements(session).read() if each.user != "watcher"]
        assert hidden
        assert all(each.query_id is None for each in hidden)
        consumers = Consumers(session, texts=False)
        consumers.remember_hidden(len(hidden))
        enable = consumers.missing[0].enable or ""
        assert "psql -h" in enable
        assert "'GRANT pg_monitor TO watcher'" in enable


def test_an_extension_that_is_a_strangers_is_not_used(shop: Cluster) -> None:
    with psycopg.connect(shop.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE strange")
        with psycopg.connect(shop.conninfo("strange"), autocommit=True) as inside:
            inside.execute("CREATE SCHEMA theirs")
            inside.execute("CREATE EXTENSION pg_stat_statements SCHEMA theirs")
            inside.execute("ALTER VIEW theirs.pg_stat_statements OWNER TO idler")
    with connect(shop.conninfo("strange")) as session, pytest.raises(MissingAbility, match="not trusted"):
        Statements(session)


def test_a_server_that_does_not_load_it_says_so(wheel18: Cluster) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE unloaded")
        with psycopg.connect(wheel18.conninfo("unloaded"), autocommit=True) as inside:
            inside.execute("CREATE EXTENSION pg_stat_statements")
    with connect(wheel18.conninfo("unloaded")) as session, pytest.raises(MissingAbility) as caught:
        Statements(session)
    assert "shared_preload_libraries" in (caught.value.hint or "")
    assert "CREATE EXTENSION" not in (caught.value.hint or "")


def test_every_version_can_be_asked(server: Cluster) -> None:
    with connect(server.conninfo()) as session:
        assert read_active(session) == []
        gathered = Consumers(session, texts=True)
        gathered.sample()
        assert [each.what for each in gathered.missing] == ["pg_stat_statements"]


def test_a_session_that_ends_is_no_lack_of_rights(shop: Cluster) -> None:
    with connect(shop.conninfo()) as session:
        gathered = Consumers(session, texts=True)
        with psycopg.connect(shop.conninfo(), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", [session.info.backend_pid])
        with pytest.raises(ConnectionFailed):
            gathered.sample()
        assert gathered.missing == []


def statement(*, calls: float = 10.0, hits: float = 100.0, reads: float = 50.0) -> Statement:
    return Statement("u", "d", 1, calls, 2.0, hits, reads, 0.0)


def test_counters_that_were_reset_count_from_nothing() -> None:
    assert gained(statement(), statement()) == {}
    assert gained(statement(), statement(calls=12.0, reads=70.0))["reads"] == 20.0
    assert gained(statement(), statement(calls=1.0, reads=7.0, hits=3.0))["reads"] == 7.0
    assert gained(None, statement())["reads"] == 50.0


def users_of(count: int, scale: float = 1.0) -> dict[Key, Values]:
    rows: dict[Key, Values] = {
        ("user", f"u{n:03}", "", ""): {"reads": scale * (n + 1), "active_seconds": 1.0} for n in range(count)
    }
    rows[total_key()] = {"reads": sum(row["reads"] for row in rows.values()), "active_seconds": float(count)}
    return rows


def test_the_largest_are_kept_by_name_and_the_rest_as_one() -> None:
    rows = users_of(100)
    kept = of_kind(largest(rows), "user")
    assert len(kept) == KEPT + 1
    assert ("user", "u099", "", "") in kept
    assert ("user", "u079", "", "") not in kept
    assert kept["user", "", "", "other"]["reads"] == sum(range(1, 81))
    assert largest(largest(rows)) == largest(rows)
    # One that reads nothing, and has most of the memory, is among them.
    rows["user", "hoarder", "", ""] = {"memory_byte_seconds": 1e12}
    assert ("user", "hoarder", "", "") in largest(rows)


def test_levels_add_up_and_any_range_is_served_by_them(store: Store) -> None:
    kept = History(store, most_bytes=1 << 30)
    end = int(time.time()) // 21_600 * 21_600
    for number in reversed(range(8 * 60)):
        at = end - 60 * number
        kept.add(Interval("shop", at, 60.0, largest(users_of(30, 1.0 + number % 2))))
    kept.start()
    assert kept.stop(patience_seconds=120.0)
    with store.writing() as session:
        history_consumers.roll_up(session, end + 500)
        history_consumers.roll_up(session, end + 500)  # makes nothing twice
        sums: dict[int, float] = dict(
            session.execute(
                "SELECT level, sum(reads) FROM main.consumers WHERE kind = 'total' AND at > ? GROUP BY level",
                [end - 21_600],
            )
        )
        assert sums[60] == sums[900] == sums[21_600] == 360 * 1.5 * sum(range(1, 31))
        rows = session.execute("SELECT count(*) FROM main.consumers WHERE level = 900")[0][0]
        assert rows == 32 * (KEPT + 2)
    for begin, until in ((end - 3600, end), (end - 8 * 3600, end + 60), (end - 400 * 86_400, end + 60)):
        found = read_consumers(store, "shop", begin, until)
        expected = min(until - begin, 8 * 3600)
        assert found.covered_seconds == pytest.approx(expected, abs=900), until - begin
        assert found.totals is not None
        users = [each for each in found.consumers if each.kind == "user"]
        assert len(users) == KEPT + 1
        assert [users[0].user, users[-1].id] == ["u029", "other"]
        assert sum(each.reads or 0.0 for each in users) == pytest.approx(found.totals.reads)
    assert read_consumers(store, "nosuch", end - 60, end).totals is None
    # A history of before has no such table.
    with store.writing() as session:
        session.execute("DROP TABLE main.consumers")
    assert read_consumers(store, "shop", end - 60, end).consumers == []


def test_the_consumers_keep_to_the_limit_too(store: Store) -> None:
    kept = History(store, most_bytes=500_000)
    now = int(time.time())
    for at in range(now - 40_000, now, 60):
        kept.add(Interval("shop", at, 60.0, largest(users_of(30))))
    kept.start()
    assert kept.stop(patience_seconds=120.0)
    assert store.size_bytes(500_000) <= 500_000
    [(newest,)] = rows_of(store, "SELECT max(at) FROM main.consumers WHERE level = 60")
    assert newest >= now - 60
