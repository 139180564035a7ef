"""Replay from Python: numbering, windows, rings, errors, and other simulators as witnesses."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pgsweep._native import PoolContents, Rules, dense_ids, replay, replay_outcomes


def zipf_trace(accesses: int, pages: int, alpha: float = 1.0, seed: int = 1) -> NDArray[np.uint32]:
    """Draw pages with probability ~ 1/rank^alpha, scattered over the ids."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, pages + 1, dtype=np.float64) ** -alpha
    cumulative = np.cumsum(weights) / weights.sum()
    ranks = np.searchsorted(cumulative, rng.random(accesses))
    return rng.permutation(pages).astype(np.uint32)[ranks]


def write_oracle_general(trace: NDArray[np.uint32], path: Path) -> None:
    """Write a trace in libCacheSim's format: u32 time, u64 object, u32 size, i64 next access."""
    record = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records = np.zeros(trace.size, dtype=record)
    records["object"] = trace
    records["size"] = 1
    records["next"] = -1
    records.tofile(path)


def congruential_trace(accesses: int, pages: int) -> NDArray[np.uint32]:
    """Make a skewed trace from a linear congruential generator, the same on every machine."""
    state = 12345
    trace = np.empty(accesses, dtype=np.uint32)
    for k in range(accesses):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        u = state >> 44  # 20 bits
        trace[k] = pages * u**4 >> 80
    return trace


def test_dense_ids_number_first_appearances() -> None:
    u32 = np.uint32
    block = np.array([7, 9, 7, 7], dtype=u32)
    fork = np.array([0, 0, 0, 1], dtype=np.uint8)
    same = np.full(4, 5, dtype=u32)
    ids, table = dense_ids(same, same, same, fork, block)
    assert ids.tolist() == [0, 1, 0, 2]
    assert table["block"].tolist() == [7, 9, 7]
    assert table["fork"].tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="same length"):
        dense_ids(same, same, same, fork, block[:3])


PINNED_MISSES = [183709, 173546, 157584, 130968, 111703, 87025, 56379, 24024]


def test_exact_misses_at_eight_sizes() -> None:
    trace = congruential_trace(200_000, 20_000)
    sizes = [16, 64, 256, 1024, 2048, 4096, 8192, 16384]
    counts = replay(trace, sizes, Rules(18))
    got = counts["misses"][:, 0].tolist()
    assert got == PINNED_MISSES, f"if the change is meant, paste: {got}"
    assert counts["accesses"].tolist() == [200_000]


@pytest.mark.parametrize(("n_bit_counter", "usage_cap"), [(2, 3), (3, 7)])
def test_libcachesim_counts_the_same_misses(tmp_path: Path, n_bit_counter: int, usage_cap: int) -> None:
    # libCacheSim's Clock cannot express a cap of 5; n bits with a first frequency of 1 are a cap of 2^n - 1.
    import libcachesim

    trace = zipf_trace(300_000, 20_000)
    path = tmp_path / "trace.oracleGeneral"
    write_oracle_general(trace, path)
    sizes = [16, 100, 1000, 5000, 15_000]
    counts = replay(trace, sizes, Rules(18, usage_cap=usage_cap))
    for size, misses in zip(sizes, counts["misses"][:, 0], strict=True):
        reader = libcachesim.TraceReader(
            str(path),
            libcachesim.TraceType.ORACLE_GENERAL_TRACE,
            libcachesim.ReaderInitParam(ignore_obj_size=True),
        )
        clock = libcachesim.Clock(size, hashpower=18, init_freq=1, n_bit_counter=n_bit_counter)
        miss_ratio, _ = clock.process_trace(reader)
        assert misses == round(miss_ratio * trace.size)


def test_a_pool_larger_than_all_pages_misses_each_once() -> None:
    trace = zipf_trace(20_000, 3000)
    counts = replay(trace, [1 << 20], Rules(18))
    assert counts["misses"][0, 0] == np.unique(trace).size
    assert counts["passes"].tolist() == [0]


def test_windows_groups_and_outcomes_agree() -> None:
    trace = zipf_trace(30_000, 2000)
    rules = Rules(18)
    groups = (np.arange(2000) % 7).astype(np.uint32)
    windows = np.array([5000, 9000, 9000, 30_000], dtype=np.uint64)
    sizes = [64, 500, 1000]
    counts = replay(trace, sizes, rules, windows=windows, groups=groups)
    assert counts["accesses"].tolist() == [4000, 0, 21_000]
    assert counts["group_accesses"].sum() == 25_000
    for k, size in enumerate(sizes):
        missed = replay_outcomes(trace, size, rules)["outcomes"] == 1
        expected = [missed[a:b].sum() for a, b in itertools.pairwise(windows)]
        assert counts["misses"][k].tolist() == expected
        by_group = np.bincount(groups[trace[5000:][missed[5000:]]], minlength=7)
        assert counts["group_misses"][k].tolist() == by_group.tolist()


def test_flags_and_rings() -> None:
    rules = Rules(15)
    table = np.arange(1000, 3000, dtype=np.uint32)
    hot = np.arange(800, dtype=np.uint32)
    pages = np.concatenate([hot, table, hot])
    flags = np.zeros(pages.size, dtype=np.uint8)
    scan = np.arange(800, 2800, dtype=np.uint64)
    flags[scan] = 1
    owner = np.zeros(scan.size, dtype=np.uint32)

    def last_misses(blocks: int) -> int:
        counts = replay(
            pages,
            [1024],
            rules,
            flags=flags,
            owner_access=scan,
            owner=owner,
            owner_blocks=np.array([blocks], dtype=np.uint32),
            windows=np.array([2800, 3600], dtype=np.uint64),
        )
        return int(counts["misses"][0, 0])

    assert last_misses(2000) == 0
    assert last_misses(256) == 800


def test_extensions_drops_repeats_and_uncounted() -> None:
    pages = np.array([0, 0, 1, 0, 0, 2, 2], dtype=np.uint32)
    flags = np.array([16, 8, 0, 32, 0, 64, 0], dtype=np.uint8)
    counts = replay(pages, [16], Rules(18), flags=flags)
    assert counts["extensions"].tolist() == [1]
    assert counts["accesses"].tolist() == [4]
    assert counts["misses"].tolist() == [[2]]
    seen = replay_outcomes(pages, 16, Rules(18), flags=flags)
    assert seen["outcomes"].tolist() == [2, 0, 1, 3, 1, 1, 0]
    assert seen["buffer_pages"].tolist() == [0, 1, 2]
    assert seen["buffer_usage_counts"].tolist() == [1, 1, 2]


def test_a_warm_start_continues_a_replay() -> None:
    trace = zipf_trace(40_000, 3000, seed=5)
    rules = Rules(18)
    whole = replay_outcomes(trace, 600, rules)
    first = replay_outcomes(trace[:25_000], 600, rules)
    contents = PoolContents(
        first["buffer_pages"],
        first["buffer_usage_counts"],
        buffers=np.arange(600, dtype=np.uint32),
        hand=first["hand"],
    )
    rest = replay_outcomes(trace[25_000:], 600, rules, warm=contents)
    assert rest["outcomes"].tolist() == whole["outcomes"][25_000:].tolist()
    assert rest["buffer_pages"].tolist() == whole["buffer_pages"].tolist()
    counts = replay(trace[25_000:], [600, 100], rules, warm=[contents, None])
    assert counts["misses"][0, 0] == (rest["outcomes"] == 1).sum()


def test_what_cannot_be_replayed_is_refused() -> None:
    pages = np.arange(10, dtype=np.uint32)
    rules = Rules(18)
    with pytest.raises(ValueError, match="128 kB"):
        replay(pages, [15], rules)
    with pytest.raises(ValueError, match="larger than any server"):
        replay(pages, [2**40], rules)
    with pytest.raises(ValueError, match="one per access"):
        replay(pages, [16], rules, flags=np.zeros(3, dtype=np.uint8))
    with pytest.raises(ValueError, match="windows"):
        replay(pages, [16], rules, windows=np.array([3, 11], dtype=np.uint64))
    with pytest.raises(ValueError, match="groups"):
        replay(pages, [16], rules, groups=np.zeros(3, dtype=np.uint32))
    with pytest.raises(ValueError, match="0 threads"):
        replay(pages, [16], rules, threads=0)
    with pytest.raises(ValueError, match="major version"):
        Rules(9)
    twice = PoolContents(np.array([1, 1], dtype=np.uint32), np.array([1, 1], dtype=np.uint8))
    with pytest.raises(ValueError, match="twice"):
        replay(pages, [16], rules, warm=[twice])


def test_no_accesses_no_misses() -> None:
    counts = replay(np.empty(0, dtype=np.uint32), [16, 32], Rules(18))
    assert counts["misses"].tolist() == [[0], [0]]


def test_rules_show_ring_sizes() -> None:
    assert Rules(15).ring_buffers(1, 8192) == 32
    assert Rules(18, max_backends=56).ring_buffers(1, 8192) == 87
    assert Rules(18).scan_uses_ring(2049, 8192)
    assert Rules(18) == Rules(18)
    assert "usage_cap=7" in repr(Rules(18, usage_cap=7))
