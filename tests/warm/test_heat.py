"""The heat file: small, whole or not at all, readable by others, and refused where it cannot be believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsweep.condition import parse_condition
from pgsweep.errors import HeatError, UsageError
from pgsweep.warm.heat.file import NOT_IN_POOL, HeatPart, SavedHeat, read_heat, write_heat
from pgsweep.warm.heat.match import Target, by_share
from pgsweep.warm.heat.order import order_blocks, restore_calls
from pgsweep.warm.heat.rotate import kept_files, rotate
from tests.fix_warm import heat_meta

NAMES = ("resident", "worth")


def heat_of(
    columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]], size_blocks: int = 1 << 20
) -> SavedHeat:
    """Return heat whose relations have these blocks, usage counts and page-cache bits."""
    parts = [
        HeatPart(
            database="shop",
            schema="public",
            relation=f"table {number} 表",
            kind="table",
            fork="main",
            table_schema="public",
            table=f"table {number} 表",
            database_oid=5,
            tablespace_oid=1663,
            filenode=16384 + number,
            size_blocks=size_blocks,
        )
        for number in range(len(columns))
    ]
    usage = np.concatenate([column[1] for column in columns]).astype(np.uint8)
    page_cache = np.concatenate([column[2] for column in columns]).astype(np.bool_)
    meta = heat_meta(
        pool_blocks=int(np.count_nonzero(usage != NOT_IN_POOL)),
        page_cache_blocks=int(np.count_nonzero(page_cache)),
    )
    part = np.repeat(np.arange(len(columns), dtype=np.int32), [len(column[0]) for column in columns])
    return SavedHeat(
        meta, parts, part, np.concatenate([c[0] for c in columns]).astype(np.int64), usage, page_cache
    )


def scattered(blocks: int, of: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the worst there is: blocks drawn at random, each with a usage count of its own."""
    random = np.random.default_rng(seed)
    chosen = np.sort(random.choice(of, blocks, replace=False))
    return chosen, random.integers(0, 6, blocks), random.random(blocks) < 0.5


def test_what_is_written_is_read(tmp_path: Path) -> None:
    only_cached = (np.arange(40), np.full(40, NOT_IN_POOL), np.ones(40))
    heat = heat_of([scattered(1000, 5000, 1), only_cached, scattered(1, 9, 2)])
    write_heat(tmp_path / "x.heat", heat)
    read = read_heat(tmp_path / "x.heat")
    assert read.meta == heat.meta
    assert read.parts == heat.parts
    for name in ("part", "block", "usage_count", "page_cache"):
        assert np.array_equal(getattr(read, name), getattr(heat, name))
    assert [part.relation for part, _ in read.by_part()] == ["table 0 表", "table 1 表", "table 2 表"]


def test_relations_go_on_from_one_group_of_rows_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsweep.warm.heat.file._ROWS_AT_ONCE", 50)
    heat = heat_of([scattered(100, 900, 1), scattered(7, 900, 2), scattered(143, 900, 3)])
    write_heat(tmp_path / "x.heat", heat)
    assert pq.read_metadata(tmp_path / "x.heat").num_row_groups == 5
    read = read_heat(tmp_path / "x.heat")
    assert read.parts == heat.parts
    for name in ("part", "block", "usage_count", "page_cache"):
        assert np.array_equal(getattr(read, name), getattr(heat, name))


def test_blocks_that_stand_there_twice_are_refused(tmp_path: Path) -> None:
    block, usage, page_cache = scattered(100, 900, 1)
    for at in (1, 99):
        block[at] = block[at - 1]
        write_heat(tmp_path / "x.heat", heat_of([(block, usage, page_cache)]))
        with pytest.raises(HeatError, match="is damaged"):
            read_heat(tmp_path / "x.heat")


def test_an_empty_pool_can_be_written(tmp_path: Path) -> None:
    nothing = np.zeros(0)
    heat = heat_of([(nothing, nothing, nothing)])
    heat = SavedHeat(heat.meta, [], heat.part, heat.block, heat.usage_count, heat.page_cache)
    write_heat(tmp_path / "x.heat", heat)
    assert read_heat(tmp_path / "x.heat").parts == []


def test_a_block_takes_less_than_two_bytes_also_at_its_worst(tmp_path: Path) -> None:
    blocks = 1 << 17
    size = write_heat(tmp_path / "x.heat", heat_of([scattered(blocks, 32 * blocks, 3)]))
    assert size < 2 * blocks, "a thirty-second of a table at random"
    dense = (np.arange(blocks), np.random.default_rng(4).integers(0, 6, blocks), np.ones(blocks))
    assert write_heat(tmp_path / "x.heat", heat_of([dense])) < 0.5 * blocks
    many = [(np.arange(20), np.full(20, 3), np.zeros(20)) for _ in range(2000)]
    assert write_heat(tmp_path / "x.heat", heat_of(many)) < 2 * 40_000, "two thousand relations"


def test_others_can_read_it(tmp_path: Path) -> None:
    write_heat(tmp_path / "x.heat", heat_of([scattered(100, 200, 1), scattered(50, 200, 2)]))
    table = pq.read_table(tmp_path / "x.heat")
    assert table.schema.names[:5] == ["database", "schema", "relation", "kind", "fork"]
    counts = table.group_by(["relation"]).aggregate([("block", "count")]).to_pylist()
    assert {row["relation"]: row["block_count"] for row in counts} == {"table 0 表": 100, "table 1 表": 50}
    assert json.loads(table.schema.metadata[b"pgsweep.heat"])["format"] == 1


def test_every_shorter_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.heat"
    write_heat(path, heat_of([scattered(300, 900, 1)]))
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(HeatError) as caught:
            read_heat(path)
        assert caught.value.hint
    path.write_bytes(whole[:-1])
    with pytest.raises(HeatError, match="was cut short"):
        read_heat(path)


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.heat"
    heat = heat_of([scattered(300, 900, 1)])
    write_heat(path, heat)
    whole = path.read_bytes()
    for at in range(4, len(whole), 61):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            read = read_heat(path)
        except HeatError:
            continue
        assert np.array_equal(read.block, heat.block)
        assert np.array_equal(read.usage_count, heat.usage_count)


def test_a_file_of_a_newer_pgsweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.heat"
    heat = heat_of([scattered(3, 9, 1)])
    newer = msgspec.structs.replace(heat.meta, format=2, pgsweep_version="9.9")
    write_heat(path, SavedHeat(newer, heat.parts, heat.part, heat.block, heat.usage_count, heat.page_cache))
    with pytest.raises(HeatError, match="written by a newer pgsweep") as caught:
        read_heat(path)
    assert "9.9" in (caught.value.cause or "")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is not a heat file"), (b"<<3>>\n1,2,3,0,0\n", "is not a heat file"), (b"PAR1PAR1", "is damaged")],
)
def test_what_is_no_heat_file(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(HeatError, match=words):
        read_heat(tmp_path / "x")


def test_other_parquet_a_folder_and_nothing_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"block": [1, 2]}), tmp_path / "x")
    with pytest.raises(HeatError, match="is not a heat file"):
        read_heat(tmp_path / "x")
    with pytest.raises(HeatError, match="is a folder"):
        read_heat(tmp_path)
    with pytest.raises(HeatError, match="there is no file"):
        read_heat(tmp_path / "y")


def test_a_full_disk_leaves_the_former_file(small_disk: Path) -> None:
    path = small_disk / "x.heat"
    write_heat(path, heat_of([scattered(10, 20, 1)]))
    (small_disk / "rest").write_bytes(bytes(1_900_000))
    with pytest.raises(HeatError, match="cannot write"), rotate(path, 3):
        write_heat(path, heat_of([scattered(200_000, 6_400_000, 2)]))
    assert len(read_heat(path).block) == 10
    assert {file.name for file in small_disk.iterdir()} == {"x.heat", "rest"}


def test_a_file_may_be_read_by_whom_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_heat(tmp_path / "x.heat", heat_of([scattered(3, 9, 1)]))
    finally:
        os.umask(before)
    assert (tmp_path / "x.heat").stat().st_mode & 0o777 == 0o640


def test_older_files_move_up_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "x.heat"
    for number in range(5):
        with rotate(path, 3):
            (tmp_path / "new").write_text(str(number))
            (tmp_path / "new").replace(path)
    assert [file.read_text() for file in [path, *kept_files(path)]] == ["4", "3", "2"]
    with rotate(path, 1):
        path.write_text("5")
    assert [file.name for file in kept_files(path)] == ["x.heat.1", "x.heat.2"], "no --keep, no removing"


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("resident<0.9", 0.89, True),
        ("resident < 90%", 0.9, False),
        ("resident<=90%", 0.9, True),
        ("resident!=1", 1.0, False),
        ("resident == 1", 1.0, True),
    ],
)
def test_conditions(text: str, value: float, holds: bool) -> None:
    assert parse_condition(text, NAMES).holds({"resident": value}) == holds


@pytest.mark.parametrize("limit", ["2", "64", "101%", "-0.1", "1.0001", "1e3%"])
def test_no_share_is_compared_with_what_none_can_be(limit: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_condition(f"worth<{limit}", NAMES)
    assert caught.value.cause is not None


@pytest.mark.parametrize("limit", ["0", "1", "0%", "100 %", "9e-1"])
def test_a_share_is_compared_with_any_other(limit: str) -> None:
    parse_condition(f"worth<{limit}", NAMES)


@pytest.mark.parametrize(
    "text", ["", "resident", "resident<", "0.9<resident", "resident<x", "a.b()<1", "worth<1MB"]
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(UsageError, match="is not a condition"):
        parse_condition(text, NAMES)


def test_a_condition_on_what_is_not_there() -> None:
    with pytest.raises(UsageError, match="there is no") as caught:
        parse_condition("residnet<1", NAMES)
    assert caught.value.hint == "known are: resident, worth"
    with pytest.raises(UsageError, match="is not known here"):
        parse_condition("resident<1", NAMES).holds({"resident": None, "worth": 1})


@given(st.integers(1, 400), st.integers(1, 400), st.data())
def test_by_share_keeps_the_share_and_the_order(was: int, now: int, data: st.DataObject) -> None:
    blocks = np.array(sorted(data.draw(st.sets(st.integers(0, was - 1), min_size=1))), dtype=np.int64)
    usage = np.array(data.draw(st.lists(st.integers(0, 5), min_size=len(blocks), max_size=len(blocks))))
    placed, level, _ = by_share(
        blocks, usage.astype(np.uint8), np.zeros(len(blocks), dtype=np.bool_), was, now
    )
    assert np.all(np.diff(placed) > 0)
    assert len(placed) == 0 or (placed[0] >= 0 and placed[-1] < now)
    assert set(level.tolist()) <= set(usage.tolist())
    share = len(blocks) / was
    if now >= was:
        assert abs(len(placed) - share * now) < 1
        if len(blocks) == was:
            assert len(placed) == now, "what was resident whole is so again"
    else:
        assert len(placed) <= share * now + 1


@st.composite
def targets(draw: st.DrawFn) -> tuple[list[Target], list[np.ndarray]]:
    """Draw saved relations of two databases, and what of them is resident."""
    found, now = [], []
    for number in range(draw(st.integers(0, 5))):
        blocks = np.array(sorted(draw(st.sets(st.integers(0, 60)))), dtype=np.int64)
        levels = st.lists(
            st.sampled_from([0, 1, 2, 3, 4, 5, NOT_IN_POOL]), min_size=len(blocks), max_size=len(blocks)
        )
        part = heat_of([(np.zeros(1), np.zeros(1), np.zeros(1))]).parts[0]
        found.append(
            Target(
                part=part,
                match="same blocks",
                database="ab"[number % 2],
                oid=number + 1,
                fork=(1663, 5, number + 1, 0),
                block=blocks,
                usage_count=np.array(draw(levels), dtype=np.uint8),
                page_cache=np.zeros(len(blocks), dtype=np.bool_),
                saved_blocks=0,
                saved_page_cache_blocks=0,
            )
        )
        now.append(np.array(draw(levels), dtype=np.uint8))
    return found, now


@given(targets(), st.integers(0, 200), st.integers(0, 800), st.integers(1, 50), st.booleans(), st.booleans())
def test_the_hottest_come_first_none_twice_and_no_more_than_there_is_room(
    drawn: tuple[list[Target], list[np.ndarray]],
    capacity: int,
    unused: int,
    call_blocks: int,
    heat: bool,
    copied: bool,
) -> None:
    found, now = drawn
    order = order_blocks(found, now, capacity, unused, all_hot_singly=copied)
    saved = [
        (int(level), target.oid, int(block))
        for target in found
        for block, level in zip(target.block, target.usage_count, strict=True)
        if level != NOT_IN_POOL
    ]
    resident = {
        (target.oid, int(block))
        for target, levels in zip(found, now, strict=True)
        for block, level in zip(target.block, levels, strict=True)
        if level != NOT_IN_POOL
    }
    kept = sorted((level for level, _, _ in saved), reverse=True)[:capacity]
    assert sorted(order.usage_count.tolist(), reverse=True) == kept, "the hottest that find room"
    assert order.usage_count[: order.singly].tolist() == kept[: order.singly], "the very hottest first"
    if copied:
        assert order.singly == sum(level >= 2 for level in kept), "all that were accessed again"
    else:
        assert order.singly <= 0.2 * len(kept)
    assert order.left_out == len(saved) - len(kept)
    calls = list(restore_calls(order, call_blocks, heat=heat))
    assert [call.number for call in calls] == list(range(len(calls)))
    assert all(call.blocks <= call_blocks for call in calls)
    accesses: dict[tuple[int, int], int] = {}
    for call in calls:
        for piece in call.pieces:
            assert piece.database == call.database
            for block in range(piece.first_block, piece.end_block):
                accesses[piece.oid, block] = accesses.get((piece.oid, block), 0) + 1
                if not call.touches:
                    assert (piece.oid, block) not in resident, "what is there is not read"
                    assert accesses[piece.oid, block] == 1, "nothing is read twice, nor touched before"
                    asked = {(p.oid, b) for p in call.ahead for b in range(p.first_block, p.end_block)}
                    assert (piece.oid, block) in asked, "the system is asked for it first"
    cached = {
        (target.oid, int(block))
        for target in found
        for block, there in zip(target.block, target.page_cache, strict=True)
        if there
    }
    for call, later in zip(calls, restore_calls(order, call_blocks, heat=heat, pages_read=True), strict=True):
        assert list(later.pieces) == list(call.pieces)
        read = {
            (p.oid, b) for p in call.pieces for b in range(p.first_block, p.end_block) if not call.touches
        }
        asked = {(p.oid, b) for p in later.ahead for b in range(p.first_block, p.end_block)}
        assert asked == read - cached, "what the page cache has already is not asked for again"
    wanted = {
        (found[number].oid, block): (level, before)
        for number, block, level, before in zip(
            order.target.tolist(),
            order.block.tolist(),
            order.usage_count.tolist(),
            order.usage_now.tolist(),
            strict=True,
        )
    }
    for key, (level, before) in wanted.items():
        reached = accesses.get(key, 0) + (0 if before == NOT_IN_POOL else before)
        least = 1 if before == NOT_IN_POOL else before
        assert reached == (max(level, least) if heat else least)
    assert set(accesses) <= set(wanted)
