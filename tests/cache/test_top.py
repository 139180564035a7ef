from __future__ import annotations

import asyncio
import os
import re
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import msgspec
import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from psycopg import sql

from pgsweep.cache.inspect import look
from pgsweep.cache.top import feed
from pgsweep.cache.top.feed import Feed, take_twice
from pgsweep.cache.top.live import Live
from pgsweep.cache.top.page_cache import PageCacheByRelation, look_at_files
from pgsweep.cache.top.sample import SORTS
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.rollup import SYSTEM_SCHEMAS
from pgsweep.records.top import TopSample, TopView
from pgsweep.residency.access import opened
from pgsweep.ui.kit.numbers import known_bytes
from pgsweep.ui.live.screen import TopApp
from pgsweep.ui.live.text import KEYS
from tests.fix_cli import run
from tests.fix_cluster import SETTINGS, own_database
from tests.fix_process import Patience, wait_until
from tests.fix_screen import screen_of

BLOCK = 8192
ODD = "odd\x1b[31m\nname 表"

_TRUTH = """
SELECT c.relname, count(*), count(*) FILTER (WHERE isdirty), count(*) FILTER (WHERE usagecount >= 4)
FROM pg_buffercache AS b JOIN pg_class AS c ON pg_relation_filenode(c.oid) = b.relfilenode
WHERE b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND c.relnamespace = 'public'::regnamespace
GROUP BY 1
"""


@contextmanager
def shop_of(cluster: Cluster) -> Iterator[str]:
    with own_database(cluster, "topped") as conninfo:
        with psycopg.connect(conninfo, autocommit=True) as inside:
            inside.execute("CREATE EXTENSION pg_buffercache")
            inside.execute("CREATE TABLE big AS SELECT g, repeat('x', 500) FROM generate_series(1, 9000) g")
            inside.execute("CREATE TABLE hot AS SELECT generate_series(1, 9000) AS n")
            inside.execute(
                sql.SQL("CREATE TABLE {} AS SELECT generate_series(1, 3000) AS n").format(sql.Identifier(ODD))
            )
            inside.execute("VACUUM ANALYZE")
            inside.execute("CHECKPOINT")
            inside.execute("UPDATE hot SET n = n WHERE n < 100")
            for _ in range(6):
                inside.execute("SELECT count(*) FROM hot").fetchone()
        yield conninfo


@contextmanager
def still_server(bindir: Path | None) -> Iterator[Cluster]:
    """A server whose pool holds all that it has, so that nothing is evicted and no hand moves."""
    with Cluster.create(bindir, {**SETTINGS, "shared_buffers": "128MB"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        yield cluster


@pytest.fixture
def still(bindir: Path | None) -> Iterator[Cluster]:
    """Such a server of each kind in turn."""
    with still_server(bindir) as cluster:
        yield cluster


@pytest.fixture
def quiet(wheel18: Cluster) -> Iterator[str]:
    """The same on one server."""
    with shop_of(wheel18) as conninfo:
        yield conninfo


@contextmanager
def pgbench(cluster: Cluster, conninfo: str) -> Iterator[None]:
    """Let pgbench's own transactions run."""
    program = str(cluster.bindir / "pgbench")
    subprocess.run([program, "-i", "-q", "-s", "3", conninfo], check=True, capture_output=True)
    load = subprocess.Popen(
        [program, "-n", "-c", "2", "-R", "300", "-T", "300", conninfo],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        load.terminate()
        load.wait()


def once(*arguments: str) -> TopSample:
    said = run("top", "--json", "--interval", "1s", *arguments, timeout_seconds=120)
    assert said.returncode == 0, said.stderr
    return msgspec.json.decode(said.stdout, type=TopSample)


def row_of(text: str, name: str) -> list[str]:
    """Return the cells of a relation's line; numbers stay with their unit."""
    [line] = [line for line in text.split("\n") if line.startswith(name + " ")]
    return re.split(r"\s+(?!\S?B\b|%)", line.strip())


def clock(text: str) -> str:
    found = re.search(r"\d\d:\d\d:\d\d", text.split("\n", maxsplit=1)[0])
    assert found, text
    return found.group()


@pytest.mark.parametrize("source", ["peek", "sql"])
def test_once_is_what_pg_buffercache_says(still: Cluster, source: str) -> None:
    with shop_of(still) as shop:
        _once_is_what_pg_buffercache_says(shop, still, source)


def _once_is_what_pg_buffercache_says(shop: str, server: Cluster, source: str) -> None:
    sample = once(shop, "--source", source)
    with psycopg.connect(shop, autocommit=True) as connection:
        rows = connection.execute(_TRUTH).fetchall()
        [buffers] = connection.execute("SELECT count(*) FROM pg_buffercache").fetchone() or (0,)
    assert sample.schema == "pgsweep.top/1"
    assert sample.pool_source == source
    found = {r.relation: r for r in sample.relations if (r.database, r.schema) == ("topped", "public")}
    assert {"big", "hot", ODD} <= {name for name, *_ in rows}
    for name, count, dirty, hot in rows:
        row = found[name]
        assert row.shared_buffers_bytes == count * BLOCK, name
        assert row.dirty_bytes == dirty * BLOCK, name
        assert sum(row.usage_counts[4:]) == hot, name
        assert row.change_bytes_per_second == 0, name
    assert sum(found["hot"].usage_counts[4:]) > 30
    assert found["hot"].dirty_bytes > 0
    assert sample.pool.size_bytes == buffers * BLOCK
    assert sample.rates is not None
    assert sample.rates.seconds >= 0.5
    assert (sample.rates.evictions_per_second is None) == (server.version_num < 160000)
    assert (sample.rates.hand_buffers_per_second is None) == (source == "sql")
    assert sample.backends.max_connections == 30
    if os.access(server.data_directory, os.R_OK | os.X_OK):
        assert sample.page_cache is not None
        with opened(shop) as access:
            cached = {r.relation: r for r in look(access, every_database=False).relations}
        for name in ("big", "hot", ODD):
            for field in ("size_bytes", "page_cache_bytes", "both_bytes"):
                assert getattr(found[name], field) == getattr(cached[name], field), (name, field)
        assert found["big"].both_bytes
        assert sample.page_cache.both_bytes >= found["big"].both_bytes


@pytest.mark.parametrize("source", ["peek", "sql"])
def test_the_screen_shows_what_pg_buffercache_says(source: str) -> None:
    with (
        still_server(None) as server,
        shop_of(server) as quiet,
        screen_of("top", quiet, "--source", source, "--filter", "public.") as screen,
    ):
        screen.wait_for("hits", "%", "big ", "hot ", " at ", ", topped", without="rates come")
        with psycopg.connect(quiet, autocommit=True) as connection:
            rows = connection.execute(_TRUTH).fetchall()

        def agrees(text: str) -> bool:
            """Return whether each line is what was counted; one that is half drawn is not."""
            for name, count, dirty, hot in rows:
                if name == ODD:
                    continue
                cells = row_of(text, name)
                share = float(cells[4].removesuffix("%")) if cells[4] != "–" else -1.0
                if cells[1] != known_bytes(count * BLOCK) or abs(share - 100 * hot / count) > 0.51:
                    return False
                if known_bytes(dirty * BLOCK) not in cells[6:]:
                    return False
            return True

        text = screen.wait_until(agrees, f"rows like {rows}")
        names = text.split("\n")[8:]
        assert any(line.startswith('"odd\\x1b[31m\\nname 表"') for line in names), text
        assert b"\x1b[31m\nname" not in screen.raw
        assert clock(text)
        for key, word in KEYS.values():
            assert f"{key} {word}" in text
        screen.press("q")
        assert screen.wait_end() == 0


def test_keys_on_a_busy_server(wheel18: Cluster, quiet: str) -> None:
    with pgbench(wheel18, quiet), screen_of("top", quiet, "--interval", "0.2s") as screen:
        before = termios.tcgetattr(screen.master)
        text = screen.wait_for("in pool▼", "pgbench_accounts", "every 0.2 s", without="rates come")
        # Figures move: pgbench works.
        screen.wait_until(lambda now: clock(now) != clock(text), "later time")
        screen.wait_until(lambda now: bool(re.search(r"transactions [1-9]", now)), "transaction")
        screen.wait_until(lambda now: "2 of 30: " in now, "the two backends of pgbench")
        for sort, (key, _) in KEYS.items():
            if sort in ("pool", "page-cache"):
                continue  # the first is where we are, the other has no column on so narrow a screen
            screen.press(key)
            header = {"change": "change/s", "hot": "4-5", "dirty": "dirty", "twice": "twice"}.get(sort)
            screen.wait_for(f"{header}▼" if header else "relation▲")
        screen.press("r")
        screen.wait_for("relation▼")
        screen.press("p")
        screen.wait_for("in pool▼")
        screen.press("p")
        screen.wait_for("in pool▲")

        screen.press("/TELLERS")
        screen.wait_for("filter TELLERS", "pgbench_tellers", without="pgbench_accounts")
        screen.press("\r")
        screen.press("d")  # not part of the filter any more
        screen.wait_for("dirty▼", "filter TELLERS", "pgbench_tellers")
        screen.press("\x1b")
        screen.wait_for("pgbench_accounts", without="filter")

        screen.press(" ")
        held = screen.wait_for("PAUSED", "Space Go on")
        time.sleep(1.5)
        assert clock(screen.text()) == clock(held)
        screen.press(" ")
        screen.wait_until(lambda now: clock(now) != clock(held), "later time")

        screen.press("+")
        screen.wait_for("every 0.5 s")
        screen.press("--")
        screen.wait_for("every 0.1 s")
        screen.press("?")
        screen.wait_for("Keys", "pause the screen")
        screen.press("x")
        screen.wait_for("in pool", without="pause the screen")
        screen.press("q")
        assert screen.wait_end() == 0
        assert termios.tcgetattr(screen.master) == before
        assert screen.raw.rfind(b"\x1b[?1049l") > screen.raw.rfind(b"\x1b[?1049h")
        assert screen.raw.rfind(b"\x1b[?25h") > screen.raw.rfind(b"\x1b[?25l")


def test_a_byte_that_is_not_utf_8_is_an_unknown_character(wheel18: Cluster) -> None:
    with screen_of("top", wheel18.conninfo(), "--interval", "0.2s", "--source", "peek") as screen:
        screen.wait_for("in pool▼", "cost: ")
        os.write(screen.master, b"\xe9\xff/caf\xe9s")
        screen.wait_for("filter caf\ufffds", "no relation in either cache")
        screen.press("\x1b")
        screen.wait_for("in pool▼", without="filter caf")
        screen.press("q")
        assert screen.wait_end() == 0


def test_a_server_stopped_and_started_is_found_again() -> None:
    settings = {"shared_buffers": "16MB", "autovacuum": "off"}
    with Cluster.create(settings=settings) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        with screen_of(
            "top", cluster.conninfo("postgres"), "--interval", "0.2s", "--source", "peek"
        ) as screen:
            screen.wait_for("in pool▼", "cost: ")
            first_pid = cluster.postmaster_pid
            cluster.stop()
            text = screen.wait_for("LOST", "trying again")
            assert "in pool▼" in text  # the last picture stays
            cluster.start()
            assert cluster.postmaster_pid != first_pid
            screen.wait_for("in pool▼", "cost: ", without="LOST")
            with psycopg.connect(cluster.conninfo("postgres"), autocommit=True) as connection:
                connection.execute("CREATE TABLE afterwards AS SELECT generate_series(1, 90000) AS n")
                connection.execute("SELECT count(*) FROM afterwards").fetchone()
                # Its catalog is read again, as its file is in no catalog read so far.
                screen.wait_for("afterwards")
            cluster.stop(immediately=True)
            screen.wait_for("LOST")
            screen.press("q")
            assert screen.wait_end() == 0


def test_any_size_of_screen(quiet: str) -> None:
    """Through Textual's own pilot: every line fits, the legend stays, and scrolling has an end."""

    @contextmanager
    def reopen() -> Iterator[Live]:
        with opened(quiet) as access:
            yield Live(access)

    async def look_at_all_sizes() -> None:
        app = TopApp(lambda *callbacks: Feed(reopen, 0.2, *callbacks), interval_seconds=0.2)
        async with app.run_test(size=(80, 24)) as pilot:

            async def shown(*parts: str) -> list[str]:
                until = Patience(60)
                while True:
                    await pilot.pause()
                    lines = [
                        "".join(segment.text for segment in strip).rstrip()
                        for strip in app.screen._compositor.render_strips()
                    ]
                    if all(any(part in line for line in lines) for part in parts):
                        return lines
                    assert until.left() > 0, "\n".join([str(parts), *lines])
                    await asyncio.sleep(0.1)

            await shown("in pool▼", "big ")
            for width, height in [(120, 40), (200, 50), (60, 12), (40, 9), (20, 5), (80, 24)]:
                await pilot.resize_terminal(width, height)
                lines = await shown("PostgreSQL" if width >= 12 else "", "sort:" if width >= 20 else "")
                assert len(lines) == height
            await pilot.press("p", "n")

            async def topmost() -> str:
                return (await shown("relation▲"))[8].split()[0]

            first = await topmost()
            await pilot.press("down", "down")
            until = Patience(60)
            while await topmost() == first:
                assert until.left() > 0
            await pilot.press(*["pagedown"] * 60)
            lines = await shown("relation▲", "cost: ")
            assert lines[8].strip(), "scrolled beyond the last relation"
            await pilot.press("home")
            until = Patience(60)
            while await topmost() != first:
                assert until.left() > 0
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(look_at_all_sizes())


def test_without_colour_nothing_is_coloured(quiet: str) -> None:
    colours = re.compile(rb"\x1b\[(?:\d+;)*(?:[39][0-7]|4[0-7]|10[0-7]|[34]8;[25];[\d;]+)(?:;\d+)*m")
    with screen_of("top", quiet) as screen:
        screen.wait_for("in pool▼", "big ")
        assert colours.search(screen.raw)
    for arguments, environment in ("", {"NO_COLOR": "1"}), ("--color never", {"COLORTERM": "truecolor"}):
        with screen_of("top", quiet, *arguments.split(), env=environment) as screen:
            text = screen.wait_for("in pool▼", "big ", without="rates come")
            assert not colours.search(screen.raw), colours.search(screen.raw)
            assert re.search(r"usage +0 . *\d+%", text)


def test_a_terminal_that_goes_away_ends_it(quiet: str) -> None:
    with screen_of("top", quiet) as screen:
        screen.wait_for("in pool▼", "big ")
        os.close(screen.master)
        screen.process.wait(timeout=60)
        screen.master = os.open(os.devnull, os.O_RDWR)


def test_looking_by_sql_is_held_back(tmp_path: Path) -> None:
    with Cluster.create(settings={"shared_buffers": "1GB", "autovacuum": "off"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        with opened(cluster.conninfo("postgres"), "sql") as access:
            live = Live(access)
            live.interval_seconds = 0.1
            sample = live.look().sample(TopView())
            assert sample.held_back
            assert sample.look_seconds / sample.interval_seconds < 0.03
        with opened(cluster.conninfo("postgres"), "peek") as access:
            live = Live(access)
            live.interval_seconds = 0.5
            assert not live.look().sample(TopView()).held_back
        with screen_of(
            "top", cluster.conninfo("postgres"), "--source", "sql", "--interval", "0.1s"
        ) as screen:
            screen.wait_for("not 0.1 s, to stay cheap", "cost: ")
            assert b"by pg_buffercache: about" in screen.raw  # reported before it began


def names_of(live: Live) -> set[tuple[str, str]]:
    return {(row.database, row.relation) for row in live.look().sample(TopView()).relations}


def test_a_table_has_its_name_when_its_transaction_commits(
    wheel18: Cluster, quiet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is seen before, when no catalog names it; and a database that is made later has its name too."""
    monkeypatch.setattr("pgsweep.cache.top.live._NAMES_SECONDS", 0.1)
    monkeypatch.setattr("pgsweep.cache.top.live._NAMES_SHARE", 1.0)
    database = psycopg.conninfo.conninfo_to_dict(quiet)["dbname"]
    with opened(quiet) as access, psycopg.connect(quiet) as session:
        live = Live(access)
        session.execute("CREATE TABLE committed_late AS SELECT repeat('x', 500) FROM generate_series(1, 999)")
        wait_until(lambda: (database, "(unknown relations)") in names_of(live))
        wait_until(lambda: names_of(live) and live._unnamed_pause > 0.1)  # it was asked for once more
        session.commit()
        wait_until(lambda: (database, "committed_late") in names_of(live))
        with psycopg.connect(quiet, autocommit=True) as other:
            other.execute("CREATE DATABASE made_later TEMPLATE template0")
            try:
                with psycopg.connect(wheel18.conninfo("made_later"), autocommit=True) as inside:
                    inside.execute("CREATE TABLE inside_it AS SELECT 1 AS id")
                    wait_until(lambda: ("made_later", "inside_it") in names_of(live))
                assert not any(name.startswith("(oid") for name, _ in names_of(live))
            finally:
                other.execute("DROP DATABASE made_later")


def test_what_has_left_the_pool_is_not_in_both_caches(quiet: str) -> None:
    """The page cache is read more rarely than the pool."""
    with opened(quiet) as access:
        live = Live(access)
        live.look()
        live.read_files(30)
        caches = live.look()
        assert caches.files is not None
        gone = replace(caches, usage_counts=np.minimum(caches.usage_counts, 1))
    sample = gone.sample(TopView())
    assert all((row.both_bytes or 0) <= row.shared_buffers_bytes for row in sample.relations)
    assert sample.page_cache is not None
    assert sample.page_cache.both_bytes <= sample.pool.used_bytes
    assert sample.page_cache.both_bytes == sum(row.both_bytes or 0 for row in sample.relations)


def test_orders_and_filter(quiet: str) -> None:
    with opened(quiet) as access:
        caches = Live(access).look()
    for sort in SORTS:
        sample = caches.sample(TopView(sort=sort))
        turned = caches.sample(TopView(sort=sort, reverse=True))
        assert [r.relation for r in turned.relations] == [r.relation for r in sample.relations[::-1]]
        assert sample.relations_found == len(sample.relations) > 50
    most = caches.sample(TopView(sort="pool", limit=3))
    assert len(most.relations) == 3
    sizes = [row.shared_buffers_bytes for row in caches.sample(TopView()).relations]
    assert sizes == sorted(sizes, reverse=True)
    assert most.relations_found > 50
    assert [r.relation for r in caches.sample(TopView(filter="PUBLIC.HOT")).relations] == ["hot"]
    assert set(KEYS) == set(SORTS)
    assert len({key for key, _ in KEYS.values()} - set("qhr")) == len(SORTS)


def test_catalogs_folded_are_one_row_with_their_sums(quiet: str) -> None:
    with opened(quiet) as access:
        live = Live(access)
        live.look()
        live.read_files(30)
        caches = live.look()
        apart, folded = caches.sample(TopView()), caches.sample(TopView(fold=True))
    [row] = [r for r in folded.relations if r.relation.startswith("(system catalogs: ")]
    catalogs = [r for r in apart.relations if (r.table_schema or r.schema) in SYSTEM_SCHEMAS]
    assert len(catalogs) > 10
    assert row.shared_buffers_bytes == sum(r.shared_buffers_bytes for r in catalogs)
    assert row.usage_counts == [sum(r.usage_counts[n] for r in catalogs) for n in range(6)]
    assert row.page_cache_bytes == sum(r.page_cache_bytes or 0 for r in catalogs)
    own = [r for r in apart.relations if r not in catalogs]
    assert [r for r in folded.relations if r != row] == own
    assert folded.relations_found == len(own) + 1


def test_a_relation_that_the_page_cache_shows_in_the_middle_of_a_sample(
    quiet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread may end, with a row more than the sample has, between any two lines of it."""
    with opened(quiet) as access:
        live = Live(access)
        live.look()
        live.read_files(30)
        directory, change = live._directory, live._change
        rows = len(directory.rows)

        def find_another(used: NDArray[np.int64], now: float) -> NDArray[np.float64] | None:
            one = np.ones(1, dtype=np.uint32)
            directory.find(one, 4_000_000_000 * one, one)
            found = look_at_files(access, None, directory)
            assert isinstance(found, PageCacheByRelation)
            live._files = found
            return change(used, now)

        monkeypatch.setattr(live, "_change", find_another)
        caches = live.look()
        assert len(directory.rows) > rows == len(caches.usage_counts)
        for fold in True, False:
            assert len(caches.sample(TopView(fold=fold, sort="page-cache")).relations) > 1
        monkeypatch.undo()
        assert live.look().sample(TopView(sort="page-cache")).relations_found > 1


def test_a_role_that_may_see_little(quiet: str, wheel18: Cluster) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE plain LOGIN")
        try:
            plain = psycopg.conninfo.make_conninfo(quiet, user="plain")
            with psycopg.connect(quiet) as other, psycopg.connect(quiet):
                sample = once(plain, "--source", "peek")
                inside, all_ = other.execute(
                    "SELECT count(datid)::int, count(*)::int FROM pg_stat_activity"
                ).fetchone() or (0, 0)
            refused = run("top", "--once", "--source", "sql", plain)
        finally:
            connection.execute("DROP ROLE plain")
    # The server's own processes are no sessions: they have no database. `top` has two of its own.
    assert sample.backends.total <= inside + 2 < all_
    assert sample.backends.hidden >= 2
    assert sample.backends.active == 0
    assert refused.returncode == 4
    assert "pg_monitor" in refused.stderr


@pytest.mark.parametrize("env", [{}, {"PGSWEEP_TOP_INTERVAL": "1s"}])
def test_once_averages_over_5_s_of_statistics_at_least(env: dict[str, str], quiet: str) -> None:
    """Statistics arrive once a second: over less than some seconds a steady load comes and goes."""
    over, executed = threading.Event(), 0

    def work() -> None:
        nonlocal executed
        with psycopg.connect(quiet, autocommit=True) as connection:
            while not over.wait(0.01):
                connection.execute("SELECT FROM hot LIMIT 1")  # without a relation nothing is reported
                executed += 1

    load = threading.Thread(target=work)
    load.start()
    try:
        begin, before = time.monotonic(), executed
        said = run("top", "--json", "--top", "1", quiet, env=env)
        wanted = (executed - before) / (time.monotonic() - begin)
    finally:
        over.set()
        load.join()
    assert said.returncode == 0, said.stderr
    rates = msgspec.json.decode(said.stdout, type=TopSample).rates
    assert rates is not None
    assert rates.seconds >= 5
    assert rates.transactions_per_second == pytest.approx(wanted, rel=0.4)


@pytest.mark.parametrize("source", ["peek", "sql"])
def test_once_shows_the_page_cache_beside_the_pool_of_the_same_time(
    wheel18: Cluster, monkeypatch: pytest.MonkeyPatch, source: Literal["peek", "sql"]
) -> None:
    """What came into both caches between the two looks is in both figures."""

    def fill(_seconds: float) -> None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("INSERT INTO made SELECT repeat('x', 500) FROM generate_series(1, 9000)")
            connection.execute("CHECKPOINT")

    monkeypatch.setattr(feed, "time", SimpleNamespace(sleep=fill))
    with (
        own_database(
            wheel18, "filled", "CREATE EXTENSION pg_buffercache; CREATE TABLE made (x text)"
        ) as conninfo,
        opened(conninfo, source) as access,
    ):
        if not access.sees_page_cache:
            pytest.skip("needs the server's files")
        sample = take_twice(Live(access), 1.0).sample(TopView())
    [made] = [row for row in sample.relations if (row.database, row.relation) == ("filled", "made")]
    assert made.shared_buffers_bytes > 3 << 20
    assert made.both_bytes == made.shared_buffers_bytes
    assert sample.page_cache is not None


def test_once_as_text_and_what_is_refused(quiet: str) -> None:
    def top(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run("top", *arguments)

    said = top("--once", "--interval", "1s", "--top", "2", "--sort", "hot", "--filter", "public.", quiet)
    assert said.returncode == 0, said.stderr
    assert "4-5▼" in said.stdout
    lines = said.stdout.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("relation"))
    assert lines[start + 1].startswith("hot ")
    assert re.search(r"and \d+ relations? more", said.stdout)
    assert "counters" in said.stderr
    assert "rates over 1.0 s only" in said.stderr
    for arguments in (["--top", "3"], ["--interval", "0.01s"], []):
        refused = top(quiet, *arguments)
        assert refused.returncode == 2
        assert "hint:" in refused.stderr
    assert "pgsweep cache" in top(quiet).stderr
    gone = top("--once", "-h", "/nowhere")
    assert gone.returncode == 3
