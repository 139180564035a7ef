"""Snapshots close together: the likelihood of paths against a simulated pool whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pgsweep import _native
from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter
from pgsweep.sizing.clock import USUAL, Clock
from pgsweep.sizing.predict import judge
from pgsweep.sizing.snapshots.observations import Group, Observations
from pgsweep.sizing.snapshots.paths import STEPS, _one_step, loaded_batch, whole_batch
from pgsweep.sizing.snapshots.rates import GRID, SINGLE, Rates
from pgsweep.units import BLOCK_BYTES
from tests.fix_paths import dense_rest, dense_step

PAGES, BUFFERS = 30_000, 3_000
WARM, BETWEEN, SNAPSHOTS = 1_500_000, 5_000, 10
RULES = _native.Rules(18)


BATCH = np.array([0.6, 0.2, 0.1, 0.05, 0.05])


def test_the_chain_at_rest_is_the_law_of_the_clock() -> None:
    for law_of_visits in (SINGLE, BATCH):
        chain = dense_step(law_of_visits, USUAL)
        assert np.allclose(chain.sum(axis=2), 1.0)
        states = dense_rest(chain)
        by_count = np.column_stack([states[:, 0], states[:, 1:].reshape(-1, 6, STEPS).sum(axis=2)])
        law = _native.clock_law(GRID, law_of_visits).reshape(-1, 7)
        # Where the hand has just passed a hot page matters within a step; elsewhere steps cost nothing.
        assert np.abs(by_count - law)[GRID < 4].max() < 0.005
        assert np.abs(by_count - law).max() < 0.03


@pytest.mark.parametrize("batch", [(1.0, 0.0, 0.0), (0.7, 0.2, 0.1)])
def test_later_visits_are_no_part_of_a_batch(batch: tuple[float, ...]) -> None:
    """Three fifths of the buffers were loaded since the first snapshot, and visited once in a pass since."""
    random, pages = np.random.default_rng(8), 30_000
    new = 3 * pages // 5
    passed = np.arange(new, 0, -1) / pages
    visits = 1 + random.poisson(passed)
    accesses = np.add.reduceat(
        1 + random.choice(len(batch), visits.sum(), p=batch), np.cumsum(visits) - visits
    )
    seen = Observations(
        groups=(Group(name="a", relations=(0,), pages=pages + new),),
        snapshots=2,
        page_group=np.zeros(pages + new, np.int32),
        page=np.concatenate([np.arange(pages), pages + np.arange(new), np.arange(new, pages)]),
        snapshot=np.repeat([0, 1], pages),
        usage_count=np.concatenate([np.repeat(1, pages), np.minimum(accesses, 5), np.repeat(0, pages - new)]),
        buffer=np.tile(np.arange(pages), 2),
        hand_buffers=np.array([0, new]),
        pool_buffers=pages,
    )
    found = loaded_batch(seen, 0)
    assert found is not None
    assert found[:3] == pytest.approx(batch, abs=0.03)
    once = Rates(
        batch=SINGLE,
        hot_batch=SINGLE,
        pages=np.where(np.arange(len(GRID)) == np.argmin(abs(GRID - 1)), pages, 0.0),
    )
    whole = whole_batch(seen, 0, once)
    assert whole is not None
    assert whole[:3] == pytest.approx(batch, abs=0.08)


def test_where_pages_do_not_begin_at_1_their_counts_are_no_batches() -> None:
    """Half of the buffers were loaded since the first snapshot; in such a pool all of them are at 0."""
    pages, new = 2_000, 1_000
    seen = Observations(
        groups=(Group(name="a", relations=(0,), pages=pages + new),),
        snapshots=2,
        page_group=np.zeros(pages + new, np.int32),
        page=np.concatenate([np.arange(pages), pages + np.arange(new), np.arange(new, pages)]),
        snapshot=np.repeat([0, 1], pages),
        usage_count=np.zeros(2 * pages, np.int64),
        buffer=np.tile(np.arange(pages), 2),
        hand_buffers=np.array([0, new]),
        pool_buffers=pages,
        clock=Clock(3, 0),
    )
    rates = Rates(batch=SINGLE, hot_batch=SINGLE, pages=np.ones(len(GRID)), clock=Clock(3, 0))
    assert loaded_batch(seen, 0) is None
    assert whole_batch(seen, 0, rates) is None


@pytest.mark.parametrize("clock", [USUAL, Clock(1, 1), Clock(3, 0)])
def test_paths_are_as_likely_as_by_whole_matrices(clock: Clock) -> None:
    """Of pages at random, of which some are the same, and some were made meanwhile."""
    random = np.random.default_rng(3)
    pool, hands = 40, np.array([100, 100, 103, 139, 180, 600, 40_600])
    shape = (60, len(hands))
    counts = np.where(random.random(shape) < 0.5, -1, random.integers(0, clock.usage_cap + 1, shape))
    buffers = np.where(counts >= 0, random.integers(0, pool, shape), 0)
    created = random.random(len(counts)) < 0.3
    counts, buffers, created = (np.concatenate([one, one[:20]]) for one in (counts, buffers, created))
    weights = np.append(np.ones(len(counts) - 1), 7.5)
    visits, turns = _one_step(BATCH, clock)
    like, pages = _native.path_likelihoods(
        counts.astype(np.int16), buffers.astype(np.int32), created, weights, hands=hands, pool=pool,
        visits=visits, turns=turns,
    )  # fmt: skip
    assert like.shape == (60, len(GRID))
    chain = dense_step(BATCH, clock)
    rest = np.maximum(dense_rest(chain), 1e-14)
    expected = []
    for count, buffer, new in zip(counts, buffers, created, strict=True):
        since = (hands - buffer) * STEPS // pool
        states = np.where(count >= 0, 1 + count * STEPS + since % STEPS, 0)
        first = int(np.argmax(count >= 0)) if new and (count >= 0).any() else len(hands) - 1 if new else 0
        path = np.ones(len(GRID)) if new and (first or count[0] < 0) else rest[:, states[0]]
        for at in range(first, len(hands) - 1):
            here = buffer[at] if count[at] >= 0 else buffer[at + 1]
            steps = int((hands[at + 1] - here) * STEPS // pool - (hands[at] - here) * STEPS // pool)
            after = rest if steps >= 480 else np.linalg.matrix_power(chain, steps)[:, states[at]]
            path = path * np.maximum(after[:, states[at + 1]], 1e-7 if steps < 480 else 0.0)
        expected.append(path / path.max())
    distance = np.abs(np.array(expected)[:, None] - like).max(axis=2)
    assert distance.min(axis=1).max() < 1e-9
    assert np.sort(pages).tolist() == [1.0] * 40 + [2.0] * 19 + [8.5]


def test_paths_that_cannot_be_are_refused() -> None:
    visits, turns = _one_step(BATCH, USUAL)
    for count, hand in ((6, 9), (-2, 9), (0, 7)):
        with pytest.raises(ValueError, match="only moves on"):
            _native.path_likelihoods(
                np.array([[0, count]], np.int16), np.zeros((1, 2), np.int32), np.zeros(1, bool), np.ones(1),
                hands=np.array([8, hand]), pool=8, visits=visits, turns=turns,
            )  # fmt: skip


@pytest.fixture(scope="module")
def accesses() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Independent accesses by Zipf's law to pages in random places."""
    random = np.random.default_rng(5)
    weights = 1 / np.arange(1, PAGES + 1) ** 0.9
    drawn = random.choice(PAGES, 3_000_000, p=weights / weights.sum())
    return random.permutation(PAGES)[drawn].astype(np.uint32)


def write(path: Path, accesses: np.ndarray[Any, np.dtype[np.uint32]], *, hand_seen: bool) -> Path:
    """Write what a recorder would have seen of a pool of BUFFERS from WARM on: in ten looks."""
    end = WARM + BETWEEN * (SNAPSHOTS - 1)
    meta = EvidenceMeta(
        source="peek",
        server_version_num=180000,
        shared_buffers_blocks=BUFFERS,
        database="bench",
        database_oid=5,
        seconds=(end - WARM) / BETWEEN,
        complete=True,
    )
    begin = _native.replay(accesses[:end], [BUFFERS], RULES, windows=np.array([WARM, end], np.uint64))
    misses = float(begin["misses"].sum())
    with EvidenceWriter(path, meta) as writer:
        counters = [(0.0, "database", "bench", "blks_read", 0.0), (0.0, "database", "bench", "blks_hit", 0.0)]
        for number in range(SNAPSHOTS):
            until = accesses[: WARM + number * BETWEEN]
            pool = _native.replay_outcomes(until, BUFFERS, RULES)
            count = len(pool["buffer_pages"])
            assert count == BUFFERS
            like = np.ones(count, np.uint32)
            writer.append(
                "snapshots",
                {
                    "snapshot": np.full(count, number),
                    "frame": np.arange(1, count + 1),
                    "spc": like,
                    "db": like * 5,
                    "rel": like,
                    "fork": like * 0,
                    "block": pool["buffer_pages"],
                    "usage_count": pool["buffer_usage_counts"],
                    "dirty": like == 0,
                    "pinned": like == 0,
                },
            )
            if hand_seen:
                moved = _native.replay(until, [BUFFERS], RULES)
                hand = int(moved["passes"][0]) * BUFFERS + int(moved["hands"][0])
                counters.append((float(number), "pool", "", "hand_frames", float(hand)))
        numbers = np.arange(SNAPSHOTS)
        times = {"snapshot": numbers, "begin_seconds": numbers * 1.0, "end_seconds": numbers * 1.0}
        writer.append("snapshot_times", {**times, "used_frames": np.full(SNAPSHOTS, BUFFERS)})
        seconds = float(SNAPSHOTS - 1)
        for scope, key in (("database", "bench"), ("relation", "77")):
            counters.append((seconds, scope, key, "blks_read", misses))
            counters.append((seconds, scope, key, "blks_hit", end - WARM - misses))
        moments, scopes, keys, names, values = zip(*counters, strict=True)
        writer.append(
            "counters",
            {
                "sample": np.zeros(len(moments)),
                "seconds": moments,
                "scope": scopes,
                "object": keys,
                "name": names,
                "value": values,
            },
        )
        relation: dict[str, list[Any]] = {
            "db": [5], "database": ["bench"], "schema": ["public"], "name": ["page"], "kind": ["r"],
            "oid": [77], "spc": [1], "rel": [1], "table_oid": [77], "blocks_begin": [PAGES],
            "blocks_end": [PAGES], "fsm_blocks": [0], "vm_blocks": [0],
            "tuples_per_block": [0.0],
        }  # fmt: skip
        writer.append("relations", relation)
        writer.close(meta)
    return path


def test_paths_tell_more_than_states_where_snapshots_are_close(
    accesses: np.ndarray[Any, np.dtype[np.uint32]], tmp_path: Path
) -> None:
    sizes = [BUFFERS // 4, BUFFERS // 2, BUFFERS, BUFFERS * 2, BUFFERS * 4]
    true = _native.replay(accesses, sizes, RULES, windows=np.array([WARM, len(accesses)], np.uint64))
    truth = true["misses"][:, 0] / true["accesses"][0]
    errors = {}
    for hand_seen in (False, True):
        path = write(tmp_path / f"{hand_seen}.evidence", accesses, hand_seen=hand_seen)
        # The curve itself, also where the recording is too short for it to be shown.
        found = judge(path, sizes_bytes=[size * BLOCK_BYTES for size in sizes])
        errors[hand_seen] = np.abs(found.estimate.miss_ratio - truth)
    assert errors[True].mean() < 0.5 * errors[False].mean(), errors
    assert errors[True].max() < 0.03, errors


def test_one_snapshot_has_no_path(accesses: np.ndarray[Any, np.dtype[np.uint32]], tmp_path: Path) -> None:
    path = write(tmp_path / "one.evidence", accesses, hand_seen=True)
    for part in (path / "snapshots").glob("part-*"):
        rows = pq.read_table(part)
        pq.write_table(rows.filter(pc.equal(rows["snapshot"], 0)), part)
    found = judge(path)
    assert found.estimate.level == "refused"
    assert "few-snapshots" in [reason.code for reason in found.estimate.reasons]
