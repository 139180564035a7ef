"""A simulated load of three relations: evidence of either kind, and the truth after a change of the load."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter
from pgsweep.units import BLOCK_BYTES
from tests.fix_pool import kinds_of

POOL = 1024
SIZES = (512, 1024, 2048)
SIZES_BYTES = [size * BLOCK_BYTES for size in SIZES]
DATABASE_OID, FIRST_OID = 5, 20_000
PER_SECOND = 10_000
_RULES = _native.Rules(18)


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Pages that are visited by Zipf's law; with exponent 0 all alike.

    Attributes:
        share: of the accesses.
    """

    name: str
    pages: int
    exponent: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """Accesses at random, and scans of one relation at intervals.

    Attributes:
        scanned: the relation that is scanned; `every` that many accesses of the others.
        kept: a relation that lies in the pool at all times.
    """

    relations: tuple[Relation, ...] = field(
        default_factory=lambda: (
            Relation(name="items", pages=3000, exponent=0.9, share=0.5),
            Relation(name="orders", pages=2000, exponent=0.0, share=0.3),
            Relation(name="log", pages=450, exponent=0.0, share=0.2),
        )
    )
    scanned: str = ""
    every: int = 0
    kept: str = ""

    def without(self, name: str) -> Load:
        """Return the load without a relation; the others are visited as often as before."""
        return replace(self, relations=tuple(one for one in self.relations if one.name != name))

    def grown(self, name: str, factor: int) -> Load:
        """Return the load with a relation of more pages, all of the load's visits spread over them."""
        grown = tuple(
            replace(one, pages=one.pages * factor) if one.name == name else one for one in self.relations
        )
        return replace(self, relations=grown)

    def first(self, name: str) -> tuple[int, int]:
        """Return the number of a relation's first page, and how many it has."""
        at = 0
        for one in self.relations:
            if one.name == name:
                return at, one.pages
            at += one.pages
        raise KeyError(name)

    def accesses(self, count: int, seed: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return pages, and the number of the scan that each access is of, or -1."""
        random = np.random.default_rng(seed)
        shares = np.array([one.share for one in self.relations])
        chosen = random.choice(len(shares), count, p=shares / shares.sum())
        pages = np.zeros(count, dtype=np.int64)
        for number, one in enumerate(self.relations):
            weights = np.arange(1, one.pages + 1) ** -one.exponent
            mine = chosen == number
            rank = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(int(mine.sum())))
            # Which pages are popular is the same in every stretch.
            place = np.random.default_rng(number).permutation(one.pages)
            pages[mine] = self.first(one.name)[0] + place[np.minimum(rank, one.pages - 1)]
        owner = np.full(count, -1)
        if self.scanned:
            begin, many = self.first(self.scanned)
            at = np.arange(self.every // 2, count, self.every)
            # Blocks come at the pace that what-ifs assume.
            places = (at[:, None] + np.arange(many)[None, :] * PER_SECOND / 50_000).ravel()
            order = np.argsort(np.concatenate([np.arange(count), places]), kind="stable")
            pages = np.concatenate([pages, np.tile(begin + np.arange(many), len(at))])[order]
            owner = np.concatenate([owner, np.repeat(np.arange(len(at)), many)])[order]
        return pages.astype(np.uint32), owner

    def truth(self, count: int = 800_000) -> NDArray[np.float64]:
        """Return the miss ratio at each of `SIZES`, of the second half of a long stretch."""
        pages, owner = self.accesses(count, seed=99)
        sizes, counted = list(SIZES), len(pages) - len(pages) // 2
        if self.kept:
            begin, many = self.first(self.kept)
            others = (pages < begin) | (pages >= begin + many)
            counted = len(pages) // 2
            pages, owner = pages[others], owner[others]
            sizes = [size - many for size in sizes]
            half = len(pages) // 2
            found = _native.replay(pages, sizes, _RULES, windows=np.array([half, len(pages)], np.uint64))
            return np.asarray(found["misses"][:, 0] / counted)
        half = len(pages) // 2
        scans: dict[str, Any] = {}
        if self.scanned:
            at = np.flatnonzero(owner >= 0)
            many = self.first(self.scanned)[1]
            scans = {
                "flags": (owner >= 0).astype(np.uint8),
                "owner_access": at.astype(np.uint64),
                "owner": owner[at].astype(np.uint32),
                "owner_blocks": np.full(int(owner.max()) + 1, many, dtype=np.uint32),
            }
        found = _native.replay(pages, sizes, _RULES, windows=np.array([half, len(pages)], np.uint64), **scans)
        return np.asarray(found["misses"][:, 0] / counted)

    def _relations(self) -> dict[str, NDArray[Any]]:
        many = len(self.relations)
        oid = FIRST_OID + np.arange(many)
        blocks = np.array([one.pages for one in self.relations])
        none = np.zeros(many, dtype=np.int64)
        return {
            "db": np.full(many, DATABASE_OID), "database": np.full(many, "shop"),
            "schema": np.full(many, "public"), "name": np.array([one.name for one in self.relations]),
            "kind": np.full(many, "r"), "oid": oid, "spc": np.full(many, 1663), "rel": oid, "table_oid": oid,
            "blocks_begin": blocks, "blocks_end": blocks, "fsm_blocks": none, "vm_blocks": none,
            "tuples_per_block": np.full(many, 50.0),
        }  # fmt: skip

    def _file(self, pages: NDArray[Any]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return relfilenode and block of each page."""
        begins = np.cumsum([0, *(one.pages for one in self.relations)])
        number = np.searchsorted(begins, pages, side="right") - 1
        return (FIRST_OID + number).astype(np.uint32), (pages - begins[number]).astype(np.uint32)

    def write_trace(self, path: Path, count: int = 150_000, *, host: dict[str, str] | None = None) -> Path:
        """Write a trace of the load on a pool of `POOL` blocks.

        Args:
            host: facts about the machine.
        """
        pages, _ = self.accesses(count, seed=1)
        rel, block = self._file(pages)
        same = np.ones(count, dtype=np.uint32)
        none = np.zeros(count, dtype=np.uint8)
        accesses: dict[str, NDArray[Any]] = {
            "time_ns": (np.arange(count) * (1e9 / PER_SECOND)).astype(np.uint64), "pid": same,
            "spc": same * 1663, "db": same * DATABASE_OID, "rel": rel, "fork": none, "block": block,
            "kind": kinds_of(pages, POOL, version=18), "strategy": none, "flags": none + np.uint8(4),
            "scan": same * np.uint32(0),
        }  # fmt: skip
        meta = msgspec.structs.replace(_meta("trace", count / PER_SECOND), host=host or {})
        with EvidenceWriter(path, meta) as writer:
            writer.append("accesses", accesses)
            writer.replace("relations", self._relations())
            writer.close(meta)
        return path

    def disk_share(self, pool_blocks: int, cache_blocks: int, count: int = 800_000) -> float:
        """Return which share of the misses waits for the disk behind a page cache of that size."""
        pages, owner = self.accesses(count, seed=99)
        if self.kept:
            begin, many = self.first(self.kept)
            others = (pages < begin) | (pages >= begin + many)
            pages, owner, pool_blocks = pages[others], owner[others], pool_blocks - many
        at = np.flatnonzero(owner >= 0)
        scans: dict[str, Any] = {}
        if len(at):
            blocks = np.full(int(owner.max()) + 1, self.first(self.scanned)[1], dtype=np.uint32)
            scans = {
                "flags": (owner >= 0).astype(np.uint8),
                "owner_access": at.astype(np.uint64),
                "owner": owner[at].astype(np.uint32),
                "owner_blocks": blocks,
            }
        missed = np.flatnonzero(_native.replay_outcomes(pages, pool_blocks, _RULES, **scans)["outcomes"] == 1)
        seconds = missed / len(pages) * count / PER_SECOND
        begins = np.cumsum([0, *(one.pages for one in self.relations)])
        seen = _native.access_files(
            pages[missed],
            begins.astype(np.uint32),
            capacity_pages=2 * cache_blocks,
            # 128 kB in pages of 4 kB.
            readahead_pages=32,
            gathered=np.searchsorted(seconds, np.arange(0, seconds[-1], 2.0)).astype(np.uint64),
        )
        late = missed >= len(pages) // 2
        return float((seen["missing_pages"][late] > 0).mean())

    def write_snapshots(
        self, path: Path, count: int = 200_000, snapshots: int = 40, *, host: dict[str, str] | None = None
    ) -> Path:
        """Write snapshots of a pool of `POOL` blocks, and the counters.

        Args:
            host: facts about the machine.
        """
        random = np.random.default_rng(2)
        pages, _ = self.accesses(2 * count, seed=1)
        pool = _native.replay_outcomes(pages[:count], POOL, _RULES)
        pages = pages[count:]
        rel, _ = self._file(pages)
        cuts = ((np.arange(snapshots) + random.random(snapshots)) / snapshots * count).astype(int).tolist()
        missed, previous = np.zeros(count, dtype=bool), 0
        meta = msgspec.structs.replace(_meta("sql", count / PER_SECOND), host=host or {})
        with EvidenceWriter(path, meta) as writer:
            writer.replace("relations", self._relations())
            writer.append("counters", self._counters(0, 0.0, rel[:0], missed[:0]))
            for number, cut in enumerate([*cuts, count]):
                warm = _native.PoolContents(
                    pool["buffer_pages"], pool["buffer_usage_counts"], hand=int(pool["hand"])
                )
                pool = _native.replay_outcomes(pages[previous:cut], POOL, _RULES, warm=warm)
                missed[previous:cut] = pool["outcomes"] == 1
                previous, seconds = cut, cut / PER_SECOND
                writer.append("counters", self._counters(number + 1, seconds, rel[:cut], missed[:cut]))
                if number == snapshots:
                    break
                node, block = self._file(pool["buffer_pages"].astype(np.int64))
                same = np.ones(POOL, dtype=np.uint32)
                rows: dict[str, NDArray[Any]] = {
                    "snapshot": np.full(POOL, number, np.int32),
                    "frame": np.arange(1, POOL + 1),
                    "spc": same * 1663,
                    "db": same * DATABASE_OID,
                    "rel": node,
                    "fork": same * 0,
                    "block": block,
                    "usage_count": pool["buffer_usage_counts"],
                    "dirty": same > 1,
                    "pinned": same > 1,
                }
                writer.append("snapshots", rows)
                times: dict[str, list[float]] = {
                    "snapshot": [number],
                    "begin_seconds": [seconds],
                    "end_seconds": [seconds],
                    "used_frames": [POOL],
                }
                writer.append("snapshot_times", times)
            writer.close(meta)
        return path

    def _counters(
        self, sample: int, seconds: float, rel: NDArray[np.uint32], missed: NDArray[np.bool_]
    ) -> dict[str, Any]:
        rows: list[tuple[str, str, str, float]] = []
        for scope, named, mine in (
            ("database", "shop", np.ones(len(rel), dtype=bool)),
            *(
                ("relation", str(FIRST_OID + number), rel == FIRST_OID + number)
                for number in range(len(self.relations))
            ),
        ):
            misses = int(np.count_nonzero(mine & missed))
            rows.append((scope, named, "blks_read", float(misses)))
            rows.append((scope, named, "blks_hit", float(np.count_nonzero(mine) - misses)))
        scope_, named_, name, value = (list(column) for column in zip(*rows, strict=True))
        many = len(rows)
        return {
            "sample": [sample] * many,
            "seconds": [seconds] * many,
            "scope": scope_,
            "object": named_,
            "name": name,
            "value": value,
        }


def _meta(source: str, seconds: float) -> EvidenceMeta:
    return EvidenceMeta(
        source=source,
        seconds=seconds,
        ended_by="time",
        server_version_num=180000,
        shared_buffers_blocks=POOL,
        database="shop",
        database_oid=DATABASE_OID,
    )
