"""The plan as a pure function, and the plan of real servers."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from pgsweep.errors import MissingAbility, UsageError
from pgsweep.pg.catalog.server import Relation, ScannedIndex
from pgsweep.records.rollup import SYSTEM_SCHEMAS
from pgsweep.records.warm import WarmResult
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.warm import warm_text
from pgsweep.warm.block_ranges import BlockRange
from pgsweep.warm.capacity import page_cache_budget, pool_budget
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.ranking import beyond, make_plan, rank
from pgsweep.warm.run.rate import draw
from pgsweep.warm.run.used_part import Counted, accesses_by_queries, fewest_levels, used_at_most
from pgsweep.warm.run.warming import plan
from tests.fix_cli import run
from tests.fix_memory import host
from tests.fix_process import wait_until
from tests.fix_warm import as_reader

MB = 1 << 20


def pieces() -> st.SearchStrategy[list[BlockRange]]:
    return st.lists(
        st.builds(
            BlockRange,
            database=st.sampled_from(["a", "b"]),
            oid=st.integers(1, 4),
            schema=st.sampled_from(["s", "pg_catalog"]),
            relation=st.just("r"),
            kind=st.sampled_from(["table", "index", "TOAST table", "TOAST index"]),
            fork=st.sampled_from(["main", "vm"]),
            first_block=st.integers(0, 40),
            blocks=st.integers(0, 30),
            heat=st.none() | st.sampled_from([0.0, 0.5, 3.0, 3.0, 1e6]),
            saved=st.booleans(),
            partly=st.booleans(),
            relation_blocks=st.integers(0, 2),
        )
    )


Block = tuple[str, int, str, int]


def blocks_of(chosen: list[BlockRange]) -> list[Block]:
    return [(p.database, p.oid, p.fork, block) for p in chosen for block in range(p.first_block, p.end_block)]


@given(pieces(), st.integers(-5, 400))
def test_never_over_budget_no_block_twice_none_lost(wanted: list[BlockRange], budget: int) -> None:
    made = make_plan(wanted, budget)
    planned, out = blocks_of(made.ranges), blocks_of(made.left_out)
    assert made.blocks == len(planned) <= max(0, budget)
    assert len(set(planned + out)) == len(planned) + len(out)
    assert set(planned + out) == set(blocks_of(wanted))
    if out:
        assert len(planned) == max(0, budget), "room was left though not all fits"


@given(pieces(), st.integers(0, 400))
def test_the_order_is_that_of_the_rank(wanted: list[BlockRange], budget: int) -> None:
    made = make_plan(wanted, budget)
    ranks = [rank(piece)[:7] for piece in (*made.ranges, *made.left_out)]
    if made.ranges and made.left_out:
        assert max(ranks[: len(made.ranges)]) <= min(ranks[len(made.ranges) :])
    assert ranks[: len(made.ranges)] == sorted(ranks[: len(made.ranges)])


@given(pieces(), st.integers(0, 400))
def test_a_block_wanted_twice_is_read_at_its_best_place(wanted: list[BlockRange], budget: int) -> None:
    best: dict[Block, Any] = {}
    for piece in wanted:
        for block in blocks_of([piece]):
            best[block] = min(best.get(block, rank(piece)[:7]), rank(piece)[:7])
    made = make_plan(wanted, budget)
    for piece in (*made.ranges, *made.left_out):
        for block in blocks_of([piece]):
            assert rank(piece)[:7] == best[block]


@given(pieces(), st.integers(0, 100), st.integers(0, 100))
def test_the_second_cache_goes_on_where_the_first_ended(wanted: list[BlockRange], one: int, two: int) -> None:
    first = make_plan(wanted, one)
    second = beyond(first, two)
    assert blocks_of(first.ranges + second.ranges) == blocks_of(make_plan(wanted, one + two).ranges)


@given(pieces(), st.integers(1, 10))
def test_a_sample_is_part_of_the_plan(wanted: list[BlockRange], stretch: int) -> None:
    made = make_plan(wanted, 1000)
    sample = blocks_of(draw(made.ranges, stretch))
    assert len(set(sample)) == len(sample)
    assert set(sample) <= set(blocks_of(made.ranges))
    assert bool(sample) == bool(made.ranges)


@given(st.integers(16, 1 << 20), st.none() | st.integers(0, 1 << 40))
def test_never_more_than_the_pool_holds(buffers: int, given_bytes: int | None) -> None:
    budget = pool_budget(buffers * 8192, given_bytes)
    assert 0 <= budget.budget_bytes <= buffers * 8192
    assert budget.budget_bytes + budget.reserve_bytes == buffers * 8192
    if given_bytes is not None:
        assert budget.budget_bytes <= given_bytes


def test_the_page_cache_gets_what_is_available_less_what_the_pool_will_take() -> None:
    budget = page_cache_budget(host(10_000 * MB, shmem=1000 * MB), 4000 * MB, None)
    assert budget.budget_bytes == (10_000 - 1000 - 3000) * MB
    assert page_cache_budget(host(10_000 * MB), 4000 * MB, 100 * MB).budget_bytes == 100 * MB
    assert page_cache_budget(host(1000 * MB), 4000 * MB, None).budget_bytes == 0
    with pytest.raises(UsageError, match="not known here"):
        page_cache_budget(None, 4000 * MB, None)
    assert page_cache_budget(None, 4000 * MB, 5 * MB).budget_bytes == 5 * MB


def planned(conninfo: str, *relations: str, **options: Any) -> WarmResult:
    options.setdefault("selection", Selection(relations=relations))
    return plan(conninfo, WarmOptions(**options), assumed_bytes_per_second=100e6)


def names(result: WarmResult) -> list[str]:
    return [row.relation for row in result.relations]


def test_a_table_brings_its_indexes_and_toast(towarm: str) -> None:
    wait_until(lambda: counted(towarm, "orders")[0] > 0)
    result = planned(towarm, "orders", "notes")
    kinds = [row.kind for row in result.relations]
    assert set(names(result)) > {"orders", "orders_pkey", "notes"}
    assert kinds.count("TOAST table") == 1
    assert kinds.count("TOAST index") == 2  # that of orders has its one page too
    assert result.expected_seconds == pytest.approx(result.asked_bytes / 100e6)
    assert result.rate is not None
    assert result.rate.kind == "assumed"
    text = warm_text(result, Terminal(0, False))
    assert {"notes (TOAST)", "notes (TOAST index)"} <= {line.strip() for line in re.split("  +|\n", text)}
    assert "pg_toast" not in text
    # A database without a time of its own has that of the whole server's statistics.
    [since] = re.findall(r"since statistics began on (.*?) \(pg_statio\)", text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", since)


def test_an_index_comes_alone_and_partitions_together(towarm: str) -> None:
    assert names(planned(towarm, "orders_pkey")) == ["orders_pkey"]
    result = planned(towarm, "parts")
    assert sorted(names(result)) == ["parts_a", "parts_a_at_idx", "parts_b", "parts_b_at_idx"]
    assert sorted(names(planned(towarm, "parts_at_idx"))) == ["parts_a_at_idx", "parts_b_at_idx"]


def counted(conninfo: str, name: str) -> tuple[int, int]:
    """Return blocks asked for and scans of a relation, as statistics have them: before 15 they come late."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(
            "SELECT pg_stat_get_blocks_fetched(%(name)s::regclass), pg_stat_get_numscans(%(name)s::regclass)",
            {"name": name},
        ).fetchone()
    assert row is not None
    return row


def test_the_hottest_come_first_and_the_unread_last(fresh: str) -> None:
    with psycopg.connect(fresh, autocommit=True) as connection:
        for _ in range(50):
            connection.execute("SELECT count(*) FROM parts_a")
        connection.execute("CREATE TABLE unread AS SELECT generate_series(1, 3000) AS n")
    wait_until(lambda: counted(fresh, "unread")[0] > 0)
    with psycopg.connect(fresh, autocommit=True) as connection:
        row = connection.execute("SELECT 'unread'::regclass::oid::int8").fetchone()
        assert row is not None
        connection.execute("SELECT pg_stat_reset_single_table_counters(%s::oid)", row)
    wait_until(lambda: counted(fresh, "unread")[0] == 0)
    result = planned(fresh, "parts_a", "parts_b", "unread", "orders")
    tables = [row.relation for row in result.relations if row.kind == "table"]
    assert tables.index("parts_a") < tables.index("parts_b")
    assert result.relations[-1].relation == "unread"
    assert "never read" in result.relations[-1].why


def test_a_small_table_that_is_hot_comes_before_an_index_that_is_not(fresh: str) -> None:
    """An index comes last where queries read its table without it."""
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("CREATE TABLE rates AS SELECT g AS id FROM generate_series(1, 600) g")
        connection.execute("CREATE INDEX rates_id ON rates (id)")
        connection.execute("CREATE TABLE log AS SELECT g AS id FROM generate_series(1, 200000) g")
        connection.execute("CREATE INDEX log_id ON log (id)")
        connection.execute("VACUUM ANALYZE rates, log")
        for _ in range(60):
            connection.execute("SELECT count(*) FROM rates")
        connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        for number in range(1, 200_000, 300):
            connection.execute("SELECT * FROM log WHERE id = %s", [number])
    wait_until(lambda: counted(fresh, "rates")[1] >= 60 and counted(fresh, "log_id")[1] >= 600)
    result = planned(fresh, "rates", "log")
    assert names(result)[0] == "rates"
    heat = {row.relation: row.heat or 0.0 for row in result.relations}
    assert heat["rates_id"] == 0
    assert heat["log"] < heat["log_id"], "loading the table, its index and VACUUM are no queries"
    # The few blocks of its two upper levels are in memory after the first queries.
    leaves = next(row for row in result.relations if row.relation == "log_id")
    assert leaves.heat == pytest.approx(counted(fresh, "log_id")[0] / 3 / (leaves.size_bytes / 8192))


def test_an_index_that_only_insertions_read_comes_last(fresh: str) -> None:
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("CREATE TABLE grown (id int, other int)")
        connection.execute("CREATE INDEX grown_id ON grown (id)")
        connection.execute("CREATE INDEX grown_other ON grown (other)")
        for first in range(0, 20_000, 1000):
            connection.execute(
                "INSERT INTO grown SELECT g, -g FROM generate_series(%s::int, %s::int) g",
                [first, first + 999],
            )
        connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        connection.execute("SELECT * FROM grown WHERE id = 7")
    wait_until(lambda: counted(fresh, "grown_id")[1] > 0 and counted(fresh, "grown_other")[0] > 20_000)
    result = planned(fresh, "grown")
    assert names(result)[0] == "grown_id"
    last = result.relations[-1]
    assert (last.relation, last.heat) == ("grown_other", 0.0)
    assert "never used by a query since statistics began, so last" in last.why


def test_without_statistics_the_smallest_come_first(fresh: str) -> None:
    """A fresh standby counts what our own sessions read of its catalogs, and nothing else."""
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_reset()")
        oids = connection.execute(
            "SELECT oid::int8 FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        )
        for oid in oids.fetchall():
            connection.execute("SELECT pg_stat_reset_single_table_counters(%s::oid)", oid)
        connection.execute("SELECT count(*) FROM pg_attribute")
    wait_until(lambda: counted(fresh, "orders")[0] == 0 and counted(fresh, "pg_attribute")[0] > 0)
    result = planned(fresh)
    assert {row.heat for row in result.relations} == {None}
    assert not any("so last" in row.why for row in result.relations)
    catalogs = [row.schema in SYSTEM_SCHEMAS for row in result.relations]
    assert catalogs == sorted(catalogs), "the database's own relations come before all catalogs"
    for catalog in (False, True):
        rows = [row for row in result.relations if (row.schema in SYSTEM_SCHEMAS) is catalog]
        sizes = [row.size_bytes for row in rows if "index" in row.kind]
        assert sizes == sorted(sizes)
    assert names(result).index("parts_b") < names(result).index("orders")


def test_indexes_nobody_has_used_yet_are_as_hot_as_their_table(fresh: str) -> None:
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("CREATE TABLE loaded AS SELECT g, -g AS other FROM generate_series(1, 9000) g")
        connection.execute("CREATE INDEX loaded_g ON loaded (g)")
        connection.execute("CREATE INDEX loaded_other ON loaded (other)")
        connection.execute("VACUUM ANALYZE loaded")
        oids = connection.execute(
            "SELECT indexrelid::int8 FROM pg_index WHERE indrelid = 'loaded'::regclass"
        ).fetchall()
    wait_until(lambda: counted(fresh, "loaded")[0] > 0)
    before = counted(fresh, "loaded")[0]
    with psycopg.connect(fresh, autocommit=True) as connection:
        for oid in oids:
            connection.execute("SELECT pg_stat_reset_single_table_counters(%s::oid)", oid)
        connection.execute("SELECT count(*) FROM loaded")
    wait_until(lambda: counted(fresh, "loaded")[0] > before)
    result = planned(fresh, "loaded")
    heat = {row.relation: row.heat for row in result.relations}
    assert heat["loaded_g"] == heat["loaded_other"] == heat["loaded"]
    assert "as hot as the table" in result.relations[0].why
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        connection.execute("SELECT * FROM loaded WHERE g = 7")
    wait_until(lambda: counted(fresh, "loaded_g")[1] > 0)
    # One of them used: the other shows that it is not. Planning alone reads a block of it now and then.
    result = planned(fresh, "loaded")
    other = next(row for row in result.relations if row.relation == "loaded_other")
    assert "as hot" not in other.why
    assert (other.heat or 0) < (heat["loaded_other"] or 0)


def test_an_index_used_in_part_comes_after_what_is_used_whole(fresh: str) -> None:
    with psycopg.connect(fresh, autocommit=True) as connection:
        for name in ("wide", "small"):
            connection.execute(
                f"CREATE TABLE {name} AS SELECT g AS id, g AS n FROM generate_series(1, 180000) g"
            )
            connection.execute(f"CREATE UNIQUE INDEX {name}_id ON {name} (id)")
        connection.execute("VACUUM ANALYZE wide, small")
        connection.execute("SET enable_seqscan = off")
        for name, last in (("wide", 20_000), ("small", 180_000)):
            for number in range(1, last, 50):
                connection.execute(f"SELECT n FROM {name} WHERE id = %s::int", [number])
    wait_until(lambda: counted(fresh, "small_id")[1] >= 3600 and counted(fresh, "wide_id")[1] >= 400)
    result = planned(fresh, "wide", "small")
    assert names(result)[:4] == ["small_id", "small", "wide_id", "wide"]
    wide_id, wide = result.relations[2:4]
    # 20,000 of 180,000 entries, and the blocks above them.
    assert "at most 12% of its blocks in use" in wide_id.why
    assert "of its indexes' blocks in use" in wide.why
    assert "in use" not in result.relations[0].why + result.relations[1].why
    # What does not fit is that of which less is used, where before it was a table used whole.
    cut = planned(fresh, "wide", "small", budget_bytes=sum(row.size_bytes for row in result.relations[:2]))
    assert [row.relation for row in cut.relations if row.left_out_bytes == 0] == ["small_id", "small"]
    with psycopg.connect(fresh, autocommit=True) as connection:
        for _ in range(3):
            connection.execute("SELECT sum(n) FROM wide")
    wait_until(lambda: counted(fresh, "wide")[1] >= 4)
    assert names(planned(fresh, "wide", "small"))[-1] == "wide_id", "a table that is scanned is used whole"


def test_blocks_that_insertions_made_may_all_be_in_use() -> None:
    table = relation(1, "r", 1000)
    index = relation(2, "i", 4000, table_oid=1)
    scanned = {2: ScannedIndex(10_000, is_btree=True)}
    read = Counted(blks_read=1000, blks_hit=29_000)

    def share(index_counted: Counted, table_counted: Counted, *, is_btree: bool = True) -> float:
        found = {2: ScannedIndex(10_000, is_btree)}
        shares = used_at_most([table, index], {1: table_counted, 2: index_counted}, found, 8192)
        return shares.get(2, 1.0)

    assert share(read, Counted(tup_inserted=1e6)) == 0.25, "scans account for all accesses"
    inserted = Counted(blks_read=1000, blks_hit=129_000)
    assert share(inserted, Counted(tup_inserted=1e6)) == 1
    assert share(inserted, Counted(tup_inserted=400)) == 0.35
    assert share(inserted, Counted(tup_updated=400)) == 0.35
    # How many blocks a query reads of another kind of index is not known.
    assert share(read, Counted(tup_inserted=1e6), is_btree=False) == 1
    assert share(read, Counted(), is_btree=False) == 0.25
    # An index that no query has used limits nothing, nor one of which all was read.
    assert used_at_most([table, index], {1: Counted(), 2: read}, {}, 8192) == {}
    assert used_at_most([table, index], {1: Counted(), 2: Counted(blks_read=4000)}, scanned, 8192) == {}


def relation(oid: int, kind: str, blocks: int, *, table_oid: int | None = None) -> Relation:
    return Relation(
        oid=oid,
        schema="public",
        name=f"r{oid}",
        kind=kind,
        database_oid=5,
        tablespace_oid=1663,
        filenode=oid,
        table_oid=oid if table_oid is None else table_oid,
        main_blocks=blocks,
        fsm_blocks=0,
        vm_blocks=0,
        measured=True,
    )


@pytest.mark.parametrize(("blocks", "levels"), [(1, 1), (2, 1), (3, 2), (411, 2), (412, 3), (160_000, 3)])
def test_levels_of_a_b_tree(blocks: int, levels: int) -> None:
    """A block holds 409 of the smallest entries: those many leaves and their root, besides the metapage."""
    assert fewest_levels(blocks, 8192) == levels


def test_what_does_not_fit_is_listed_and_cut(towarm: str) -> None:
    budget = 40 * 8192
    result = planned(towarm, "orders", budget_bytes=budget)
    assert result.asked_bytes == budget
    orders = next(row for row in result.relations if row.relation == "orders")
    assert 0 < orders.pool_bytes < orders.size_bytes
    assert orders.pool_bytes + orders.left_out_bytes == orders.size_bytes
    assert result.left_out_bytes == sum(row.left_out_bytes for row in result.relations)


def test_never_more_than_the_pool_of_a_real_server(fresh: str) -> None:
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE large AS SELECT g, repeat('l', 900) FROM generate_series(1, 25000) g"
        )
    result = planned(fresh, "large", budget_bytes=1000 * MB)
    assert result.asked_bytes == 16 * MB < result.asked_bytes + result.left_out_bytes
    both = planned(fresh, "large", into="both", budget_bytes=20 * MB, mode="read")
    assert [b.planned_bytes for b in both.budgets] == [16 * MB, 4 * MB]


def test_a_plain_client_sees_what_it_may_not_read(towarm: str) -> None:
    result = planned(as_reader(towarm), selection=Selection(schemas=["public"]))
    reader = f"{conninfo_to_dict(towarm)['dbname']}_reader"
    refused = {trouble.relation for trouble in result.refused}
    assert {"secret", "scratch"} <= refused
    [unread] = result.missing
    assert re.fullmatch(r"the role may not read \d tables of \d", unread.why)
    assert (unread.enable or "").endswith(f"-c 'GRANT pg_read_all_data TO {reader}'")
    assert "Only system catalogs are planned" not in warm_text(result, Terminal())
    assert {"orders", "orders_pkey", "parts_a"} <= set(names(result))
    assert not refused & set(names(result))
    with pytest.raises(MissingAbility, match="may not read `secret`") as caught:
        planned(as_reader(towarm), "secret")
    parts = conninfo_to_dict(towarm)
    said = shlex.split(str(caught.value.hint))
    assert said[-2:] == ["-c", f"GRANT SELECT ON public.secret TO {parts['dbname']}_reader"]
    assert said[said.index("-p") + 1] == str(parts["port"])
    assert said[said.index("-d") + 1] == parts["dbname"]
    with pytest.raises(MissingAbility, match="may read none of the 2 relations"):
        planned(as_reader(towarm), "secret", "scratch")


def test_a_role_that_may_read_no_table_is_told_so(fresh: str) -> None:
    """It may read catalogs, which alone are planned then; what it is granted is what it lacked."""
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one; CREATE ROLE blind LOGIN")
    try:
        result = planned(f"{fresh} user=blind")
        [unread] = result.missing
        assert unread.why.startswith("the role may read none of the ")
        assert "Only system catalogs are planned" in warm_text(result, Terminal())
        [grant] = re.findall(r"GRANT pg_read_all_data TO blind", unread.enable or "")
        with psycopg.connect(fresh, autocommit=True) as connection:
            connection.execute(grant.encode())
        again = planned(f"{fresh} user=blind")
        assert (again.missing, again.refused) == ([], [])
    finally:
        with psycopg.connect(fresh, autocommit=True) as connection:
            connection.execute("DROP ROLE blind")


def test_what_cannot_be_warmed_is_said(fresh: str) -> None:
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("CREATE VIEW looking AS SELECT * FROM orders")
    with pytest.raises(UsageError, match="has no blocks"):
        planned(fresh, "looking")
    with pytest.raises(UsageError, match="there is no relation `absent`"):
        planned(fresh, "absent")
    with pytest.raises(UsageError, match="schema `absent`"):
        planned(fresh, selection=Selection(schemas=["absent"]))
    assert planned(fresh, "nothing").asked_bytes == 0


def test_every_database_and_the_shared_catalogs_once(towarm: str) -> None:
    result = planned(towarm, selection=Selection(every_database=True), budget_bytes=100 * MB)
    assert {"towarm", "postgres"} <= {row.database for row in result.relations}
    assert names(result).count("pg_authid") == 1
    # Databases of other tests lack pg_prewarm too.
    without = {entry.what for entry in result.missing}
    assert "database template1" in without and not without & {"database towarm", "database postgres"}


def test_without_pg_prewarm_there_is_no_way_through_the_server(fresh: str) -> None:
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("DROP EXTENSION pg_prewarm")
    with pytest.raises(MissingAbility, match="pg_prewarm does not exist") as caught:
        planned(fresh, "orders")
    assert "CREATE EXTENSION" in (caught.value.hint or "")


def test_the_rate_is_measured_by_a_sample_that_leaves_the_pool_alone(towarm: str) -> None:
    result = plan(towarm, WarmOptions(selection=Selection(relations=["orders"])))
    assert result.rate is not None
    assert result.rate.kind == "measured"
    assert 0 < result.rate.sample_bytes <= result.asked_bytes
    assert result.expected_seconds == pytest.approx(result.asked_bytes / result.rate.bytes_per_second)


def test_the_rate_is_measured_where_the_first_stretch_takes_longer_than_the_sample_may(
    towarm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsweep.warm.run.rate._MOST_SECONDS", 0.0)
    result = plan(towarm, WarmOptions(selection=Selection(relations=["orders"])))
    assert result.rate is not None
    assert result.rate.bytes_per_second > 0


def test_the_first_of_a_plan(towarm: str) -> None:
    whole = json.loads(run("warm", "plan", towarm, "--assume-rate", "1GB", "--json").stdout)
    assert whole["relations_found"] is None
    some = json.loads(run("warm", "plan", towarm, "--assume-rate", "1GB", "--top", "2", "--json").stdout)
    assert [row["order"] for row in some["relations"]] == [1, 2]
    assert some["relations_found"] == len(whole["relations"]) > 2
    text = run("warm", "plan", towarm, "--assume-rate", "1GB", "--top", "2").stdout
    assert f"... and {len(whole['relations']) - 2} relations more; without --top: all" in text
    assert run("warm", "plan", towarm, "--top", "0").returncode == 2


def test_what_loading_and_vacuum_read_of_a_table_is_no_use_of_it() -> None:
    """As after pgbench -i: four accesses a block, and then 1000 rows by an index of three levels."""
    table, index = relation(1, "r", 10_000), relation(2, "i", 2000, table_oid=1)
    counted_now = {
        1: Counted(blks_hit=40_000 + 1000, scans=1, tup_inserted=1e6),
        2: Counted(blks_hit=3000, scans=1000, tup_fetched=1000),
    }
    found = accesses_by_queries([table, index], counted_now, {2: ScannedIndex(1000, is_btree=True)}, 8192)
    assert found == {1: 1000, 2: 1000}
    toast, its_index = (
        msgspec.structs.replace(relation(oid, kind, 500, table_oid=1), schema="pg_toast")
        for oid, kind in ((3, "t"), (4, "i"))
    )
    counted_now |= {3: Counted(blks_hit=900), 4: Counted(blks_hit=1600, scans=800, tup_fetched=800)}
    every = [table, index, toast, its_index]
    assert accesses_by_queries(every, counted_now, {}, 8192) == {1: 1000, 2: 3000, 3: 800, 4: 1600}
    # A scan from end to end is use, and one that stops at once is what it has read.
    counted_now[1] = Counted(blks_hit=61_000, scans=3, tup_inserted=1e6)
    assert accesses_by_queries([table, index], counted_now, {}, 8192)[1] == 21_000
    counted_now[1] = Counted(blks_hit=500, scans=500)
    assert accesses_by_queries([table, index], counted_now, {}, 8192)[1] == 500
