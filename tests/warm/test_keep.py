"""Relations kept resident on real servers under real floods, and all that goes wrong meanwhile."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import msgspec
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsweep.errors import ConnectionFailed, MissingAbility, PgsweepError, UsageError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.warm_keep import WarmKeepResult, WarmKeepSample
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.warm_keep import plan_text, warm_keep_text
from pgsweep.units import parse_bytes
from pgsweep.warm.keep.keep import Keeper, KeepOptions, budget
from tests.fix_flood import HOT_BLOCKS, fill, flood, floodable, resident
from tests.fix_process import wait_until

BLOCK = 8192
PATIENCE_SECONDS = 30.0
RANGES_A_ROUND = 4


@pytest.fixture(scope="module")
def shops() -> Iterator[Callable[[Cluster], str]]:
    """Gives the database that the tests of this module share, by server; its two tables stay as they are."""
    made: dict[str, str] = {}
    with ExitStack() as closing:

        def shop_of(cluster: Cluster) -> str:
            where = cluster.conninfo()
            if where not in made:
                made[where] = closing.enter_context(floodable(cluster))
            return made[where]

        yield shop_of


@pytest.fixture
def shop(server: Cluster, shops: Callable[[Cluster], str]) -> str:
    return shops(server)


class Running:
    """A keeper in a thread of its own."""

    def __init__(self, conninfo: str, options: KeepOptions) -> None:
        self.samples: list[WarmKeepSample] = []
        self.notes: list[str] = []
        self.result: WarmKeepResult | None = None
        self.error: PgsweepError | None = None
        self._seen = self._ranges = 0
        self._stop = threading.Event()
        self._keeper = Keeper(conninfo, options, report=self.samples.append, note=self.notes.append)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._keeper.run(stop=self._stop)
        except PgsweepError as error:
            self.error = error

    def until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            there = condition()
            assert there or self._thread.is_alive(), self.error
            return there

        wait_until(holds, PATIENCE_SECONDS, lambda: (self.samples[-3:], self.notes))

    def keeps_up(self) -> bool:
        """Return whether a flood may go on: it may read half of the pool before the next round.

        On a busy machine rounds are late, and a flood of any pace may turn the pool between two.
        """
        if len(self.samples) > self._seen:
            self._seen, self._ranges = len(self.samples), 0
        if self._ranges >= RANGES_A_ROUND and self._thread.is_alive():
            return False
        self._ranges += 1
        return True

    def end(self) -> WarmKeepResult:
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error
        assert self.result is not None
        return self.result

    def share(self) -> float:
        shares = [share for _, share in self.samples[-1].relations] if self.samples else []
        return min((share for share in shares if share is not None), default=0.0)


@contextmanager
def keeping(conninfo: str, *names: str, **options: object) -> Iterator[Running]:
    running = Running(
        conninfo,
        KeepOptions(names=list(names), report_seconds=0.05, **options),  # type: ignore[arg-type]
    )
    try:
        yield running
    finally:
        running._stop.set()
        running._thread.join()


@pytest.mark.parametrize("source", ["peek", "sql"])
def test_a_table_stays_in_spite_of_a_flood(shop: str, source: Literal["peek", "sql"]) -> None:
    with keeping(shop, "hot", indexes=True, source=source) as running, flood(shop, running.keeps_up):
        running.until(lambda: running.share() == 1.0)
        begun = len(running.samples)
        running.until(
            lambda: sum(sample.touched_blocks for sample in running.samples[begun:]) > 2 * HOT_BLOCKS
        )
        result = running.end()
        shares = [sample.relations for sample in running.samples[begun:]]
        kept = [share for relations in shares for _, share in relations if share is not None]
        assert sum(kept) / len(kept) > 0.6
        # Without it the flood takes all of it.
        wait_until(lambda: len(resident(shop)) <= HOT_BLOCKS // 10)
    hot, index = result.relations
    assert (hot.relation, hot.kind, hot.size_bytes) == ("hot", "table", HOT_BLOCKS * BLOCK)
    assert (index.relation, index.kind) == ("hot_pkey", "index")
    assert hot.kept_bytes == hot.size_bytes
    assert result.pool_source == source
    assert result.ended_by == "stop"
    assert result.lap_seconds is not None
    assert result.touched_blocks == hot.touched_blocks + index.touched_blocks
    assert 0 < result.touch_seconds <= result.statement_seconds < result.seconds
    assert (result.look_seconds > 0) == (source == "sql")


def test_without_a_flood_next_to_nothing_is_done_and_counts_are_the_servers(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("CREATE TABLE calm WITH (fillfactor = 10) AS SELECT repeat('c', 700)"
                           " FROM generate_series(1, 200)")  # fmt: skip
        for _ in range(7):
            connection.execute("SELECT pg_prewarm('flood', 'buffer', 'main', 0, 2500)").fetchone()
        # From 16 on a relation is extended by more blocks than it needs.
        size = connection.execute("SELECT pg_relation_size('calm') / 8192").fetchone()
        assert size is not None
        blocks = size[0]
        missing = blocks - len(resident(shop, "calm"))
        oid = connection.execute("SELECT 'calm'::regclass::oid").fetchone()
        connection.execute("SELECT pg_stat_reset_single_table_counters(%s)", oid)
        with keeping(shop, "calm", interval_seconds=0.1) as running:
            running.until(lambda: running.share() == 1.0 and len(running.samples) > 6)
            result = running.end()
        assert resident(shop, "calm") == set(range(blocks))
        assert result.read_blocks == missing > 0
        # On a busy machine the hand may pass a few blocks twice before all are there. In a flood all are
        # touched in each round.
        assert result.touched_blocks <= 2 * blocks < result.rounds * blocks
        counted = "SELECT heap_blks_hit, heap_blks_read FROM pg_statio_all_tables WHERE relname = 'calm'"
        # Sessions send their counts when they end, at the latest.
        wait_until(
            lambda: connection.execute(counted).fetchone() == (result.touched_blocks, result.read_blocks),
            why=lambda: (connection.execute(counted).fetchone(), result),
        )
        connection.execute("DROP TABLE calm")


def test_of_larger_relations_the_hottest_blocks_are_kept(shop: str) -> None:
    with pytest.raises(UsageError, match="a quarter of shared_buffers is 4 MB") as caught:
        Keeper(shop, KeepOptions(names=["flood"])).run(seconds=1)
    assert "--budget 4MB keeps their hottest blocks" in str(caught.value.hint)
    with pytest.raises(UsageError, match="too much of a pool of 16 MB"):
        Keeper(shop, KeepOptions(names=["hot"], budget_bytes=13 << 20)).run(seconds=1)
    hot = range(50)
    with (
        psycopg.connect(shop, autocommit=True) as connection,
        keeping(shop, "hot", budget_bytes=60 * BLOCK) as running,
        flood(shop, running.keeps_up),
    ):
        # Others use the first blocks for a while, then leave them to the flood.
        def used_for_some_rounds() -> bool:
            for block in hot:
                connection.execute("SELECT f FROM hot WHERE ctid = %s::tid", [f"({block},1)"]).fetchone()
            return len(running.samples) >= 8

        running.until(used_for_some_rounds)
        begun = len(running.samples)
        running.until(lambda: sum(sample.touched_blocks for sample in running.samples[begun:]) > 2 * len(hot))
        present = resident(shop)
        result = running.end()
    [row] = result.relations
    assert result.budget_bytes == 60 * BLOCK
    assert 50 * BLOCK <= row.kept_bytes <= 60 * BLOCK
    # The flood leaves none where nobody keeps them.
    assert len(present & set(hot)) >= 30
    assert len(present - set(hot)) <= 100


def test_blocks_are_read_into_free_buffers_or_in_the_place_of_others() -> None:
    with Cluster.create(settings={"shared_buffers": "16MB", "autovacuum": "off"}) as cluster:
        fill(cluster.conninfo())
        cluster.restart()
        keeper = Keeper(cluster.conninfo(), KeepOptions(names=["hot"]))
        result = keeper.run(seconds=0.5)
        text = warm_keep_text(result, Terminal())
        assert " blocks (2.34 MB) read, into free buffers.\n" in text
        assert "The clock hand stood still: nothing was evicted" in text
        once = msgspec.structs.replace(result, rounds=1, touched_blocks=1, read_blocks=1)
        text = warm_keep_text(once, Terminal())
        assert "\n1 round: 1 touch of a block, 1 block (8 kB) read, into free buffers.\n" in text
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            for _ in range(7):
                connection.execute("SELECT pg_prewarm('flood')")
            connection.execute("CREATE TABLE empty (n int)")
        result = Keeper(cluster.conninfo(), KeepOptions(names=["hot"])).run(seconds=0.5)
        assert result.replacing_blocks == result.read_blocks > 200
        text = warm_keep_text(result, Terminal())
        assert " read, each in the place of another.\n" in text
        assert "stood still" not in text
        result = Keeper(cluster.conninfo(), KeepOptions(names=["empty"])).run(seconds=0.5)
        text = warm_keep_text(result, Terminal())
        assert " 0 blocks (0) read.\n" in text
        assert "There was nothing to keep: the relations have no blocks.\n" in text
        assert "before," not in text
        assert "stood still" not in text


@pytest.mark.parametrize("pool_bytes", [128 << 10, 1 << 20, 10 << 20, 16 << 20, (1 << 30) + BLOCK])
def test_a_budget_that_a_hint_names_is_accepted(pool_bytes: int) -> None:
    hints = []
    for wanted in (None, 4, pool_bytes):
        with pytest.raises(UsageError) as caught:
            budget(wanted, pool_bytes, pool_bytes)
        hints.append(str(caught.value.hint))
    for size in re.findall(r"\d+[kMG]B", " ".join(hints)):
        named = parse_bytes(size)
        assert budget(named, pool_bytes, pool_bytes) == named > 0
        assert named % BLOCK == 0
    # A quarter, or three quarters, but for less than a block.
    assert [len(re.findall(r"\d+[kMG]B", hint)) for hint in hints] == [2, 1, 1]
    assert pool_bytes // 4 - BLOCK < parse_bytes(re.findall(r"\d+[kMG]B", hints[0])[0]) <= pool_bytes // 4


def test_no_two_keep_the_same_relation(shop: str) -> None:
    with keeping(shop, "hot", interval_seconds=0.1) as running:
        running.until(lambda: bool(running.samples))
        with pytest.raises(PgsweepError, match="`hot` is being kept already") as caught:
            Keeper(shop, KeepOptions(names=["flood", "hot"], budget_bytes=1 << 20)).run(seconds=1)
        # A session that is ended on the server is opened again: its client is to be ended.
        [asked] = re.findall(r"psql -c '(.*)'", str(caught.value.hint))
        with psycopg.connect(shop) as connection:
            assert len(connection.execute(asked).fetchall()) == 1
        # Another relation may be, and the lock ends with the session.
        Keeper(shop, KeepOptions(names=["hot_pkey"])).run(seconds=0.2)
        running.end()

    def may_be_kept() -> bool:
        try:
            return Keeper(shop, KeepOptions(names=["hot"])).run(seconds=0.2).ended_by == "time"
        except PgsweepError as error:
            # The server ends a session some time after its client has closed it.
            assert "is being kept already" in error.message
            return False

    wait_until(may_be_kept)


def test_a_relation_is_rewritten_locked_and_dropped_meanwhile(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("CREATE TABLE mine AS SELECT g FROM generate_series(1, 9000) g")
        connection.execute("CREATE TABLE other AS SELECT g FROM generate_series(1, 5000) g")
        with keeping(shop, "mine", "other", interval_seconds=0.1) as running:
            running.until(lambda: running.share() == 1.0)
            connection.execute("VACUUM FULL mine")
            running.until(lambda: any("mine was rewritten" in note for note in running.notes))
            begun = len(running.samples)
            running.until(lambda: len(running.samples) > begun + 2 and running.share() == 1.0)
            with psycopg.connect(shop) as blocker:
                blocker.execute("LOCK TABLE mine IN ACCESS EXCLUSIVE MODE")
                blocker.execute("TRUNCATE other")
                begun = len(running.samples)
                running.until(lambda: len(running.samples) > begun + 3)
            connection.execute("INSERT INTO other SELECT generate_series(1, 9000)")
            running.until(lambda: any("other was rewritten" in note for note in running.notes))
            running.until(lambda: len(resident(shop, "other")) == 40)
            connection.execute("DROP TABLE other")
            running.until(lambda: any("other was dropped" in note for note in running.notes))
            connection.execute("DROP TABLE mine")
            running._thread.join(PATIENCE_SECONDS)
    assert running.error is None
    assert running.result is not None
    assert running.result.ended_by == "gone"
    assert running.result.resident_share_after is None
    for row in running.result.relations:
        assert (row.size_bytes, row.kept_bytes, row.resident_share_after) == (0, 0, None)
        assert row.resident_share_mean is not None
        assert row.resident_share_mean > 0
    assert {row.trouble for row in running.result.relations} == {"it was dropped meanwhile"}
    assert {row.resident_share_after for row in running.result.relations} == {None}
    assert running.result.resident_share_after is None


def test_what_the_names_mean_is_asked_again(shop: str) -> None:
    """Rebuilt indexes, new partitions and indexes, a table that is made anew: all are kept."""
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("CREATE TABLE parted (g int) PARTITION BY RANGE (g)")
        connection.execute("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (9000)")
        connection.execute("INSERT INTO parted SELECT generate_series(1, 8999)")
        connection.execute("CREATE INDEX parted_g ON parted (g)")
        connection.execute("CREATE TABLE anew AS SELECT g FROM generate_series(1, 9000) g")
        with keeping(shop, "parted", "anew", indexes=True, interval_seconds=0.1) as running:
            running.until(lambda: running.share() == 1.0)

            def kept() -> set[str]:
                return {label for label, share in running.samples[-1].relations if share == 1.0}

            for _ in range(2):
                connection.execute("REINDEX INDEX CONCURRENTLY parted_1_g_idx")
            connection.execute("CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (9000) TO (20000)")
            connection.execute("INSERT INTO parted SELECT generate_series(9000, 19999)")
            connection.execute("CREATE INDEX anew_g ON anew (g)")
            both = {"anew", "anew_g", "parted_1", "parted_1_g_idx", "parted_2", "parted_2_g_idx"}
            running.until(lambda: kept() == both)
            with connection.transaction():
                connection.execute("DROP TABLE anew")
                connection.execute("CREATE TABLE anew AS SELECT g FROM generate_series(1, 9000) g")
            connection.execute("ALTER TABLE parted RENAME TO named_otherwise")
            running.until(lambda: kept() == both - {"anew_g"} and any("anew_g" in n for n in running.notes))
            running.until(lambda: len(resident(shop, "parted_1_g_idx")) > 0)
            connection.execute("ALTER TABLE named_otherwise DETACH PARTITION parted_1")
            running.until(lambda: kept() == {"anew", "parted_2", "parted_2_g_idx"})
            result = running.end()
        connection.execute("DROP TABLE named_otherwise, parted_1, anew")
    troubled = {row.relation: row.trouble for row in result.relations if row.trouble}
    assert troubled == {
        "anew_g": "it was dropped meanwhile",
        "parted_1": "it was taken out of what the names mean meanwhile",
        "parted_1_g_idx": "it was taken out of what the names mean meanwhile",
    }


def test_what_is_dropped_before_the_end_is_not_resident_at_the_end(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("CREATE TABLE brief AS SELECT g FROM generate_series(1, 9000) g")
        with keeping(shop, "brief", "hot", interval_seconds=0.1) as running:
            running.until(lambda: running.share() == 1.0)
            connection.execute("DROP TABLE brief")
            result = running.end()
    brief, hot = result.relations
    assert brief.trouble == "it was dropped meanwhile"
    assert brief.resident_share_after is None
    assert result.resident_share_after == hot.resident_share_after == 1.0
    [line] = [line for line in warm_keep_text(result, Terminal()).splitlines() if line.startswith("brief ")]
    assert re.search(r" 0  +0  .* [\d.]+%  +– ", line), line


def test_names_are_those_of_sql(shop: str) -> None:
    odd = 'we"ird; Näme'
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(odd)))
        name = sql.Identifier(odd, odd)
        connection.execute(sql.SQL("CREATE TABLE {} (id int, f text) PARTITION BY RANGE (id)").format(name))
        for number in (1, 2):
            part = sql.Identifier(odd, f"part {number}")
            connection.execute(
                sql.SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})").format(
                    part, name, number, number + 1
                )
            )
            connection.execute(sql.SQL("ALTER TABLE {} ALTER f SET STORAGE EXTERNAL").format(part))
        connection.execute(sql.SQL("CREATE INDEX ON {} (id)").format(name))
        connection.execute(
            sql.SQL(
                "INSERT INTO {} SELECT 1 + g % 2, repeat('t', 9000) FROM generate_series(1, 40) g"
            ).format(name)
        )
        quoted = name.as_string(connection)
        connection.execute("CREATE OR REPLACE VIEW seen AS SELECT 1")
    plan = Keeper(shop, KeepOptions(names=[quoted])).plan()
    assert [row.relation for row in plan.relations] == ["part 1", "part 2"]
    plan = Keeper(shop, KeepOptions(names=[quoted, "hot"], indexes=True, toast=True)).plan()
    kinds = [row.kind for row in plan.relations]
    # Two partitions, each with an index, a TOAST table and that one's index; the table, its index and TOAST.
    numbers = [kinds.count(kind) for kind in ("table", "index", "TOAST table", "TOAST index")]
    assert numbers == [3, 3, 3, 3]
    text = plan_text(plan, Terminal())
    assert "\nhot (TOAST) " in text
    assert "\nhot (TOAST index) " in text
    assert "pg_toast" not in text.partition("Statements, as they would be sent")[0]
    for wrong in ("nothing.there", "no_such", 'x"; DROP TABLE hot', "seen", ""):
        with pytest.raises(UsageError, match=r"there is no relation|has no blocks") as caught:
            Keeper(shop, KeepOptions(names=[wrong])).plan()
        assert caught.value.hint


def test_a_dry_run_names_statements_and_bytes_and_touches_nothing(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        for _ in range(8):
            connection.execute("SELECT count(pg_prewarm('flood', 'buffer', 'main', 0, 3000))").fetchone()
        gone = HOT_BLOCKS - len(resident(shop))
        plan = Keeper(shop, KeepOptions(names=["hot"], source="sql")).plan()
        assert HOT_BLOCKS - len(resident(shop)) == gone
        assert plan.read_bytes == gone * BLOCK
        text = "\n".join(plan.statements)
        for words in (
            "set_config('lock_timeout', '100ms', false)",
            "pg_try_advisory_lock",
            "pg_buffercache",
            "pg_prewarm(",
        ):
            assert words in text
        # The statements are what they say: sent, they bring the relation in.
        for statement in plan.statements:
            connection.execute(statement.encode())
    assert resident(shop) == set(range(HOT_BLOCKS))


def test_a_role_without_rights_learns_what_to_grant(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("CREATE ROLE keep_reader LOGIN; GRANT pg_monitor TO keep_reader")
        try:
            reader = make_conninfo(shop, user="keep_reader")
            with pytest.raises(MissingAbility, match="`hot` cannot be kept") as caught:
                # Also where the time is over before the first round.
                Keeper(reader, KeepOptions(names=["hot"])).run(seconds=0)
            hint = str(caught.value.hint)
            assert """-c 'GRANT SELECT ON public.hot TO keep_reader'""" in hint
            assert f"-p {conninfo_to_dict(shop)['port']}" in hint
            connection.execute("GRANT SELECT ON hot TO keep_reader")
            result = Keeper(reader, KeepOptions(names=["hot", "flood"], budget_bytes=3 << 20)).run(seconds=1)
            assert {row.relation: row.trouble is None for row in result.relations} == {
                "hot": True,
                "flood": False,
            }
            connection.execute("DROP EXTENSION pg_prewarm")
            with pytest.raises(MissingAbility, match="pg_prewarm") as caught:
                Keeper(reader, KeepOptions(names=["hot"])).run(seconds=1)
            assert "CREATE EXTENSION pg_prewarm" in str(caught.value.hint)
            connection.execute("CREATE EXTENSION pg_prewarm")
        finally:
            connection.execute("DROP OWNED BY keep_reader; DROP ROLE keep_reader")


def test_a_server_that_restarts_is_found_again_and_filled_again() -> None:
    with Cluster.create(settings={"shared_buffers": "16MB", "autovacuum": "off"}) as cluster:
        fill(cluster.conninfo())
        with keeping(cluster.conninfo(), "hot", interval_seconds=0.1) as running:
            running.until(lambda: running.share() == 1.0)
            cluster.stop()
            running.until(lambda: any("trying again" in note for note in running.notes))
            time.sleep(1.5)  # how long it is away is in the result
            cluster.start()
            running.until(lambda: resident(cluster.conninfo()) == set(range(HOT_BLOCKS)))
            # A session ended by an administrator comes back as well, and claims the relation anew.
            with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'pgsweep warm keep'"
                )
            begun = len(running.samples)
            running.until(lambda: len(running.samples) > begun + 3)
            with pytest.raises(PgsweepError, match="being kept already"):
                Keeper(cluster.conninfo(), KeepOptions(names=["hot"])).run(seconds=1)
            result = running.end()
        assert result.reconnects == 2
        assert result.resident_share_mean is not None
        assert result.resident_share_mean < 1 - 1 / result.seconds, "the server was away for longer"
        # All blocks of the only relation are kept, so the average of all is its own.
        assert result.relations[0].resident_share_mean == pytest.approx(result.resident_share_mean)
        assert result.relations[0].read_blocks >= HOT_BLOCKS
        cluster.stop()
        with pytest.raises(ConnectionFailed):
            Keeper(cluster.conninfo(), KeepOptions(names=["hot"])).run(seconds=1)
