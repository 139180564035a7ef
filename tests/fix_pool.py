"""A simulated pool and what a recorder sees of it: tables as evidence has them, and the truth at any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.evidence.schema import EvidenceMeta
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.observed import Server
from pgsweep.sizing.snapshots.ensemble import LoadCurves
from pgsweep.sizing.snapshots.fit import fit_load
from pgsweep.sizing.snapshots.load import observed_load
from pgsweep.sizing.snapshots.model import SnapshotModel
from pgsweep.sizing.snapshots.totals import read_totals
from pgsweep.sizing.snapshots.used_snapshots import UsedSnapshots

RULES = _native.Rules(18)
PER_SECOND = 10_000
Pages = NDArray[np.uint32]


def zipf_pages(pages: int, exponent: float, count: int, seed: int, *, uniform: float = 0.0) -> Pages:
    """Return independent accesses by Zipf's law, a part of them uniform, to pages in random places."""
    random = np.random.default_rng(seed)
    weights = np.arange(1, pages + 1) ** -exponent
    weights = (1 - uniform) * weights / weights.sum() + uniform / pages
    drawn = np.searchsorted(np.cumsum(weights), random.random(count))
    return random.permutation(pages)[np.minimum(drawn, pages - 1)].astype(np.uint32)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a recorder saw: tables of evidence, and where the hand really stood."""

    snapshots: dict[str, NDArray[Any]]
    relations: dict[str, NDArray[Any]]
    counters: dict[str, NDArray[Any]]
    hands: NDArray[np.int64]
    buffers: int
    miss_ratio: float
    rules: _native.Rules

    @property
    def passes(self) -> float:
        return float(self.hands[-1] - self.hands[0]) / self.buffers

    def predict(self, sizes: list[int], *, hand_seen: bool = False) -> Estimate:
        return self.model(hand_seen=hand_seen).estimate(sizes)

    def model(self, *, hand_seen: bool = False) -> SnapshotModel:
        used = UsedSnapshots(
            snapshots=self.snapshots,
            used_blocks=np.zeros(0, np.int64),
            hand_buffers=self.hands if hand_seen else np.zeros(0, np.int64),
            loads=None,
            warnings=(),
        )
        totals = read_totals(self.counters, self.relations, "bench")
        meta = EvidenceMeta(
            source="sql",
            server_version_num=180000,
            shared_buffers_blocks=self.buffers,
            database="bench",
            database_oid=5,
        )
        load = observed_load(used, self.relations, totals, Server.of(meta), self.rules)
        return SnapshotModel(curves=LoadCurves(load=load, fit=fit_load(load)))


def truth(accesses: Pages, begin: int, sizes: list[int], rules: _native.Rules = RULES) -> NDArray[np.float64]:
    """Return the miss ratio from `begin` on at each size."""
    found = _native.replay(accesses, sizes, rules, windows=np.array([begin, len(accesses)], np.uint64))
    return np.asarray(found["misses"][:, 0] / found["accesses"][0])


def record(
    accesses: Pages,
    begin: int,
    *,
    pages: int,
    buffers: int,
    snapshots: int,
    seed: int = 0,
    rules: _native.Rules = RULES,
) -> Seen:
    """Watch a pool from `begin` to the end of the accesses, one snapshot at random in each slot of time."""
    random = np.random.default_rng(seed)
    cuts = begin + ((np.arange(snapshots) + random.random(snapshots)) / snapshots * (len(accesses) - begin))
    pool = _native.replay_outcomes(accesses[:begin], buffers, rules)
    hand, missed, previous = int(pool["hand"]), 0, begin
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in ("snapshot", "frame", "block", "usage_count")}
    hands: list[int] = []
    counters = [(0.0, 0, 0, hand)]
    for number, cut in enumerate([*cuts.astype(int).tolist(), len(accesses)]):
        part = accesses[previous:cut]
        if len(part):
            warm = _native.PoolContents(
                pool["buffer_pages"], pool["buffer_usage_counts"], hand=int(pool["hand"])
            )
            counted = _native.replay(part, [buffers], rules, warm=[warm])
            hand += int(counted["passes"][0]) * buffers + int(counted["hands"][0]) - int(pool["hand"])
            pool = _native.replay_outcomes(part, buffers, rules, warm=warm)
            missed += int((pool["outcomes"] == 1).sum())
        previous = cut
        counters.append(((cut - begin) / PER_SECOND, cut - begin, missed, hand))
        if number < snapshots:
            rows["snapshot"].append(np.full(buffers, number))
            rows["frame"].append(np.arange(1, buffers + 1))
            rows["block"].append(pool["buffer_pages"].copy())
            rows["usage_count"].append(pool["buffer_usage_counts"].copy())
            hands.append(hand)
    table: dict[str, NDArray[Any]] = {name: np.concatenate(parts) for name, parts in rows.items()}
    one = np.ones(len(table["frame"]), np.int64)
    values = [
        (at, scope, key, name, float(value))
        for at, total, misses, _ in counters
        for scope, key, name, value in (
            ("database", "bench", "blks_read", misses),
            ("database", "bench", "blks_hit", total - misses),
            ("relation", "77", "blks_read", misses),
            ("relation", "77", "blks_hit", total - misses),
            ("bgwriter", "", "buffers_alloc", misses),
        )
    ]
    names = ("seconds", "scope", "object", "name", "value")
    return Seen(
        snapshots={**table, "spc": one, "db": one * 5, "rel": one, "fork": one * 0},
        relations={
            "db": np.array([5]), "database": np.array(["bench"]), "schema": np.array(["public"]),
            "name": np.array(["page"]), "kind": np.array(["r"]), "oid": np.array([77]), "spc": np.array([1]),
            "rel": np.array([1]), "table_oid": np.array([77]), "blocks_begin": np.array([pages]),
            "blocks_end": np.array([pages]), "fsm_blocks": np.array([0]), "vm_blocks": np.array([0]),
            "tuples_per_block": np.array([0.0]),
        },
        counters=dict(zip(names, map(np.array, zip(*values, strict=True)), strict=True)),
        hands=np.array(hands),
        buffers=buffers,
        rules=rules,
        miss_ratio=missed / (len(accesses) - begin),
    )  # fmt: skip


def kinds_of(
    pages: NDArray[Any], blocks: int, *, version: int, new: NDArray[np.bool_] | None = None
) -> NDArray[np.uint8]:
    """Return what a server with a pool of that size makes of accesses, after they were all made once before.

    Args:
        pages: a number for each page.
        new: which accesses make their page.

    Returns:
        0 for a hit, 1 for a miss, 2 for an extension, as evidence has them.
    """
    if not len(pages):
        return np.zeros(0, dtype=np.uint8)
    ids = np.unique(pages, return_inverse=True)[1].astype(np.uint32).ravel()
    flags = np.zeros(len(ids), dtype=np.uint8)
    if new is not None:
        flags[new] = 16
    twice = _native.replay_outcomes(
        np.concatenate([ids, ids]), blocks, _native.Rules(version), flags=np.concatenate([flags, flags])
    )
    return np.asarray(twice["outcomes"][len(ids) :], dtype=np.uint8)
