"""Plans by saved heat: what the file holds comes first, also where statistics know nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import psycopg
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsweep.pg.catalog.server import Relation
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.warm import WarmResult
from pgsweep.residency.access import opened
from pgsweep.residency.names import Named
from pgsweep.units import format_time
from pgsweep.warm.block_ranges import BlockRange
from pgsweep.warm.heat.file import NOT_IN_POOL, HeatPart, SavedHeat, read_heat
from pgsweep.warm.heat.save import save
from pgsweep.warm.heat.saved import PAGE_CACHE_ONLY, HeatWeights, weigh
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.journal import read_journal
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.ranking import make_plan
from pgsweep.warm.run.warming import plan, run
from tests.fix_cli import run as pgsweep
from tests.fix_warm import database_to_warm, evict_all, heat_meta

OWN = Selection(schemas=["public"])
Levels = list[int]


def heat_of(relations: list[Levels], *, kind: str = "table") -> SavedHeat:
    """Return heat of relations r0, r1 and so on; a level is a block's usage count, or NOT_IN_POOL."""
    parts = [
        HeatPart(
            database="d",
            schema="pg_toast" if kind.startswith("TOAST") else "s",
            relation=f"r{number}",
            kind=kind,
            fork="main",
            table_schema="s",
            table=f"t{number}",
            database_oid=5,
            tablespace_oid=1663,
            filenode=1000 + number,
            size_blocks=len(levels),
        )
        for number, levels in enumerate(relations)
    ]
    flat = [level for levels in relations for level in levels]
    usage = np.array(flat, dtype=np.uint8)
    return SavedHeat(
        meta=heat_meta(),
        parts=parts,
        part=np.repeat(np.arange(len(relations), dtype=np.int32), [len(levels) for levels in relations]),
        block=np.array([block for levels in relations for block in range(len(levels))], dtype=np.int64),
        usage_count=usage,
        page_cache=usage == NOT_IN_POOL,
    )


def named(number: int, *, name: str | None = None, toast: bool = False) -> Named:
    relation = Relation(
        oid=1,
        schema="pg_toast" if toast else "s",
        name=name or ("pg_toast_77" if toast else f"r{number}"),
        kind="t" if toast else "r",
        database_oid=5,
        tablespace_oid=1663,
        filenode=1000 + number,
        table_oid=1,
        main_blocks=1,
        fsm_blocks=0,
        vm_blocks=0,
        measured=True,
    )
    return Named("d", relation, ("s", f"t{number}"), ("s", f"t{number}"))


levels = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, NOT_IN_POOL]), min_size=1, max_size=12)


def weight(saved: HeatWeights, number: int) -> float:
    found = saved.weight_of(named(number), same_cluster=False)
    assert found is not None
    return found


@given(st.lists(levels, min_size=1, max_size=5), st.data())
def test_more_saved_usage_weighs_more(relations: list[Levels], data: st.DataObject) -> None:
    before = weigh(Path("a.heat"), heat_of(relations))
    for number, blocks in enumerate(relations):
        expected = sum(PAGE_CACHE_ONLY if level == NOT_IN_POOL else level + 1 for level in blocks)
        assert weight(before, number) == pytest.approx(expected)
    number = data.draw(st.integers(0, len(relations) - 1))
    block = data.draw(st.integers(0, len(relations[number]) - 1))
    level = relations[number][block]
    relations[number][block] = 0 if level == NOT_IN_POOL else min(5, level + 1)
    after = weigh(Path("a.heat"), heat_of(relations))
    assert (weight(after, number) > weight(before, number)) == (level != 5)
    for other in set(range(len(relations))) - {number}:
        assert weight(after, other) == weight(before, other)


@given(
    st.lists(st.tuples(levels, st.booleans(), st.integers(1, 9)), min_size=1, max_size=6), st.integers(0, 60)
)
def test_what_is_saved_comes_first_and_densest_first(
    relations: list[tuple[Levels, bool, int]], budget: int
) -> None:
    saved = weigh(Path("a.heat"), heat_of([blocks for blocks, _, _ in relations]))
    pieces = [
        BlockRange(
            database="d",
            oid=number,
            schema="s",
            relation=f"r{number}",
            kind="table",
            fork="main",
            first_block=0,
            blocks=blocks,
            heat=weight(saved, number) / blocks if known else 1e9,
            saved=known,
        )
        for number, (_, known, blocks) in enumerate(relations)
    ]
    made = make_plan(pieces, budget)
    order = [(not piece.saved, -(piece.heat or 0)) for piece in (*made.ranges, *made.left_out)]
    # The piece that was cut stands in both lists, and is one piece.
    assert order[: len(made.ranges)] == sorted(order[: len(made.ranges)])
    assert order[len(made.ranges) :] == sorted(order[len(made.ranges) :])
    assert not made.ranges or not made.left_out or order[len(made.ranges) - 1] <= order[len(made.ranges)]


def test_renamed_relations_are_found_by_their_files_and_toast_by_its_table() -> None:
    saved = weigh(Path("a.heat"), heat_of([[5], [1, 1]]))
    assert saved.weight_of(named(1, name="other"), same_cluster=True) == 4
    assert saved.weight_of(named(1, name="other"), same_cluster=False) is None
    toast = weigh(Path("a.heat"), heat_of([[5], [1, 1]], kind="TOAST table"))
    assert toast.weight_of(named(1, toast=True), same_cluster=False) == 4
    assert weigh(Path("a.heat"), heat_of([])).by_name == {}


def rows_of(result: WarmResult) -> dict[str, tuple[int, bool]]:
    return {row.relation: (row.order, row.saved) for row in result.relations}


def planned(conninfo: str, heat: Path, selection: Selection = OWN) -> WarmResult:
    options = WarmOptions(selection=selection, heat=weigh(heat, read_heat(heat)))
    return plan(conninfo, options, assumed_bytes_per_second=1e8)


def heat_up(conninfo: str, **times: int) -> None:
    """Empty the pool, and read relations so many times."""
    evict_all(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for name, often in times.items():
            for _ in range(often):
                connection.execute("SELECT pg_prewarm(%s::regclass)", [name])


def saved_from(conninfo: str, path: Path) -> Path:
    with opened(conninfo) as access:
        save(access, path)
    return path


def test_the_file_decides_where_statistics_are_empty(fresh: str, tmp_path: Path) -> None:
    heat_up(fresh, parts_a=1, notes=3, orders=6)
    heat = saved_from(fresh, tmp_path / "a.heat")
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("CREATE TABLE made_later AS SELECT generate_series(1, 500) AS n")
        connection.execute("ALTER TABLE notes RENAME TO remarks")
        connection.execute("SELECT pg_stat_reset()")
    result = planned(fresh, heat)
    rows = rows_of(result)
    assert rows["orders"][0] < rows["remarks"][0] < rows["parts_a"][0] < rows["made_later"][0]
    assert [rows[name][1] for name in ("orders", "remarks", "parts_a", "made_later")] == [True] * 3 + [False]
    assert max(order for order, saved in rows.values() if saved) < rows["made_later"][0]
    orders = next(row for row in result.relations if row.relation == "orders")
    assert orders.heat is not None
    assert 4 < orders.heat <= 6
    assert orders.why.startswith("table; saved usage a block:")
    assert result.heat_file is not None
    assert result.heat_source.startswith(f"saved heat of {format_time(result.heat_file.at)} ({heat})")
    assert "not in the heat file" in next(r.why for r in result.relations if r.relation == "made_later")
    assert result.statistics_since is not None


def test_another_server_is_planned_by_names(
    wheel18: Cluster, debian15: Cluster, warm_databases: Callable[[Cluster], str], tmp_path: Path
) -> None:
    heat_up(warm_databases(wheel18), secret=6, parts_b=2)
    heat = saved_from(warm_databases(wheel18), tmp_path / "a.heat")
    result = planned(warm_databases(debian15), heat)
    assert [row.relation for row in result.relations if row.saved and row.kind == "table"][:1] == ["secret"]
    assert result.heat_source.startswith("saved heat of")
    assert result.heat_file is not None
    assert result.heat_file.server_version != result.server_version


@pytest.fixture
def saved(
    wheel18: Cluster, warm_databases: Callable[[Cluster], str], tmp_path: Path
) -> Iterator[tuple[str, Path]]:
    conninfo = warm_databases(wheel18)
    heat_up(conninfo, orders=4, parts_a=2)
    yield conninfo, saved_from(conninfo, tmp_path / "a.heat")


def test_what_is_no_heat_file_is_not_replaced(saved: tuple[str, Path], tmp_path: Path) -> None:
    conninfo, _ = saved
    dump = tmp_path / "shop.sql"
    dump.write_text("CREATE TABLE t ();")
    done = pgsweep("warm", "save", str(dump), conninfo)
    assert done.returncode == 1
    assert "is not replaced: it is not a heat file" in done.stderr
    assert dump.read_text() == "CREATE TABLE t ();"
    dump.write_bytes(b"")
    assert pgsweep("warm", "save", str(dump), conninfo).returncode == 0
    assert read_heat(dump).parts


def test_what_is_no_heat_file_is_not_moved(saved: tuple[str, Path]) -> None:
    conninfo, heat = saved
    notes = heat.with_name(f"{heat.name}.1")
    notes.write_text("mine")
    before = heat.read_bytes()
    done = pgsweep("warm", "save", str(heat), conninfo, "--keep", "3")
    assert done.returncode == 1
    assert "--keep would move it" in done.stderr
    assert (notes.read_text(), heat.read_bytes()) == ("mine", before)
    assert pgsweep("warm", "save", str(heat), conninfo).returncode == 0, "nothing is moved"


def test_a_file_of_another_database_is_reported(saved: tuple[str, Path], wheel18: Cluster) -> None:
    with database_to_warm(wheel18, "unknown") as conninfo:
        result = planned(conninfo, saved[1])
    assert "holds none of these relations" in result.heat_source
    assert not any(row.saved for row in result.relations)


def test_a_stopped_run_is_resumed_in_the_order_of_the_heat(saved: tuple[str, Path], tmp_path: Path) -> None:
    conninfo, heat = saved
    options = WarmOptions(selection=OWN, heat=weigh(heat, read_heat(heat)))
    stop = threading.Event()
    stop.set()
    journal = tmp_path / "a.journal"
    first = run(conninfo, options, stop=stop, journal=journal)
    assert first.work is not None
    assert first.work.stopped
    left = [piece.relation for piece in read_journal(journal).pool]
    assert list(dict.fromkeys(left)) == [row.relation for row in first.relations]
    rest = run(conninfo, WarmOptions(), journal=journal, resume=journal)
    assert rest.work is not None
    assert rest.work.read_bytes == first.asked_bytes
    assert rest.heat_source == "as the run planned it that was stopped"
    assert [row.saved for row in rest.relations] == [row.saved for row in first.relations]


def test_the_command_line_shows_the_order_and_refuses_bad_files(
    saved: tuple[str, Path], tmp_path: Path
) -> None:
    conninfo, heat = saved
    words = ("--schema", "public", "--assume-rate", "1GB", "-d", conninfo)
    done = pgsweep("warm", "plan", "--heat", str(heat), *words)
    assert done.returncode == 0, done.stderr
    assert "Order: saved heat of 20" in done.stdout
    assert "saved usage a block" in done.stdout
    again = json.loads(
        pgsweep("warm", "run", "-n", "--heat", str(heat), "--json", *words[:2], *words[4:]).stdout
    )
    assert again["heat_file"]["path"] == str(heat)
    short = tmp_path / "short.heat"
    short.write_bytes(heat.read_bytes()[:-100])
    newer = tmp_path / "newer.heat"
    table = pq.read_table(heat)
    meta = {**msgspec.json.decode(table.schema.metadata[b"pgsweep.heat"]), "format": 99}
    pq.write_table(table.replace_schema_metadata({b"pgsweep.heat": msgspec.json.encode(meta)}), newer)
    for path, message, code in (
        (short, "was cut short", 1),
        (newer, "written by a newer pgsweep", 1),
        (tmp_path / "absent.heat", "there is no file", 2),
    ):
        reported = [
            pgsweep("warm", *verb, str(path), *words[4:]) for verb in (("plan", "--heat"), ("restore",))
        ]
        assert [one.returncode for one in reported] == [code, code]
        assert message in reported[0].stderr
        first, second = (one.stderr.splitlines() for one in reported)
        assert first[0] == second[0]
    clash = pgsweep("warm", "run", "--resume", "--heat", str(heat), *words[4:])
    assert clash.returncode == 2
