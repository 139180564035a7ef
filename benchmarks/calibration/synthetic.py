"""Cheap cases by simulation: accesses drawn from a law, a simulated pool for truth and snapshots.

A case of this kind takes a second, so thousands of them show whether intervals hold where a real server
would take days. What it simulates is what the method assumes of the pool (the same replay), and what it
does not assume of the workload: visits of several accesses with time between them, scans, loops, rates
that drift.

The evidence is written in the format of a recording and read by the same code. Its counters lag as a
server's do: blocks of a scan are counted when the scan ends.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep._native import BULKREAD
from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter

SYNTHETIC = 3
"""Raised when the same seed gives another case than before."""

_DATABASE, _DATABASE_OID, _SPACE = "bench", 5, 1663
_FIRST_OID = 20_000
_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_WARM_SHARE = 1.0
"""Accesses before the counted ones, relative to these; the pools begin with what is most popular among them.

Of what comes later a pool must know nothing: one that began with the pages that are counted afterwards would
not miss any of them."""


class SyntheticRelation(msgspec.Struct, frozen=True, kw_only=True):
    """Pages and how they are visited.

    Attributes:
        law: zipf, uniform, classes, moving or loop.
        share: of all visits.
        accesses: mean number of accesses of a visit, geometric.
        gap_seconds: how far apart they lie, on average, exponential.
    """

    pages: int
    law: str
    exponent: float
    share: float
    accesses: float
    gap_seconds: float


class SyntheticSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated case.

    Attributes:
        accesses_per_second: of all relations; how long a clock pass takes follows from it.
        passes: of the clock hand that are observed, about.
        snapshots: taken in that time.
        scanned_pages: size of one more relation that is scanned, 0 is none.
        scan_share: of all accesses made by these scans.
        factors: sizes of the truth relative to the observed one, ascending.
        warm_passes: that the pool has seen before, at least.
        truth_passes: that the truth is counted over, from the beginning of the recording on, at least.
        most_accesses: that are recorded.
    """

    seed: int
    version: int
    pool_blocks: int
    accesses_per_second: float = 1000.0
    passes: float
    snapshots: int
    relations: tuple[SyntheticRelation, ...]
    scanned_pages: int = 0
    scan_share: float = 0.0
    factors: tuple[float, ...] = _FACTORS
    warm_passes: float = 0.0
    truth_passes: float = 0.0
    most_accesses: int = 3_000_000

    def sizes_blocks(self) -> tuple[int, ...]:
        """Return the sizes of the truth in blocks, ascending."""
        return tuple(round(self.pool_blocks * factor) for factor in self.factors)

    def tags(self) -> tuple[str, ...]:
        """Return the words that cases are sorted by."""
        found = {relation.law for relation in self.relations}
        found |= {"scan"} if self.scanned_pages else set()
        if any(relation.accesses > 1.5 and relation.gap_seconds > 0.01 for relation in self.relations):
            found.add("spread visits")
        return tuple(sorted(found))


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A case that was simulated.

    Attributes:
        truth: miss ratio by size in blocks.
        passes: of the hand at the observed size.
        scan_share: of the accesses counted.
    """

    truth: dict[int, float]
    passes: float
    scan_share: float


def draw_synthetic(seed: int) -> SyntheticSpec:
    """Return the simulated case of a seed."""
    rng = np.random.default_rng([SYNTHETIC, 77, seed])
    pool = int(rng.choice([512, 1024, 2048]))
    pages = pool * float(np.exp(rng.uniform(np.log(2), np.log(40))))
    count = int(rng.integers(1, 6))
    parts = rng.dirichlet(np.full(count, 1.5))
    shares = rng.dirichlet(np.full(count, 1.5))
    relations = tuple(
        SyntheticRelation(
            pages=max(int(pages * part), 20),
            law=str(
                rng.choice(["zipf", "uniform", "classes", "moving", "loop"], p=[0.6, 0.14, 0.18, 0.05, 0.03])
            ),
            exponent=round(float(rng.uniform(0.5, 1.5)), 2),
            share=round(float(share), 4),
            accesses=round(float(rng.choice([1.0, 1.0, rng.uniform(1.2, 5)])), 2),
            gap_seconds=round(float(rng.choice([0.0, np.exp(rng.uniform(np.log(0.0001), np.log(0.2)))])), 6),
        )
        for part, share in zip(parts, shares, strict=True)
    )
    scans = rng.random() < 0.3
    return SyntheticSpec(
        seed=seed,
        version=int(rng.choice([15, 18])),
        pool_blocks=pool,
        accesses_per_second=round(float(np.exp(rng.uniform(np.log(30), np.log(5000)))), 1),
        passes=round(float(np.exp(rng.uniform(np.log(4), np.log(150)))), 1),
        snapshots=int(rng.integers(12, 61)),
        relations=relations,
        scanned_pages=int(pool * np.exp(rng.uniform(np.log(0.05), np.log(8)))) if scans else 0,
        scan_share=round(float(rng.uniform(0.05, 0.7)), 3) if scans else 0.0,
    )


def simulate(spec: SyntheticSpec, folder: Path) -> Simulated:
    """Simulate a case; write `sql.evidence` and `peek.evidence`, which differ in the clock hand.

    Args:
        spec: the case.
        folder: is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([SYNTHETIC, 78, spec.seed])
    of_pass = accesses_of_pass(spec, rng)
    wanted = int(min(spec.passes * of_pass, spec.most_accesses))
    counted = max(wanted, round(spec.truth_passes * of_pass))
    warm = max(round(counted * _WARM_SHARE), round(spec.warm_passes * of_pass))
    accesses = _Accesses(spec, warm + counted, rng, known_share=warm / (warm + counted))
    begin = len(accesses.pages) - counted
    misses, count = accesses.misses(list(spec.sizes_blocks()), begin)
    passes = _write(spec, accesses, begin, begin + wanted, folder, rng)
    return Simulated(
        truth={size: float(missed) / count for size, missed in zip(spec.sizes_blocks(), misses, strict=True)},
        passes=passes,
        scan_share=float((accesses.flags[begin:] == BULKREAD).mean()),
    )


def accesses_of_pass(spec: SyntheticSpec, rng: np.random.Generator) -> float:
    """Return about how many accesses a clock pass takes: a short stretch shows the miss ratio."""
    probe = _Accesses(spec, 8 * spec.pool_blocks, rng, known_share=0.5)
    probe_misses = max(probe.misses([spec.pool_blocks], len(probe.pages) // 2)[0][0], 1)
    per_access = probe_misses / (len(probe.pages) - len(probe.pages) // 2)
    # Pages used again outlast passes: a pass takes fewer loads than there are buffers.
    return float(0.6 * spec.pool_blocks / per_access)


class _Accesses:
    """Accesses in the form that the simulator takes.

    Args:
        known_share: of the accesses, those from the beginning on that say which pages are popular.

    Attributes:
        pages: ids; a relation's begin at `first`.
        reported: position of the access at whose time each is counted.
    """

    def __init__(
        self, spec: SyntheticSpec, count: int, rng: np.random.Generator, *, known_share: float
    ) -> None:
        self._rules = _native.Rules(spec.version)
        sizes = [relation.pages for relation in spec.relations]
        sizes += [spec.scanned_pages] if spec.scanned_pages else []
        self.first = np.concatenate([[0], np.cumsum(sizes)])
        self._popularity = np.zeros(self.first[-1])
        self._weight = np.zeros(self.first[-1])
        times, pages = [], []
        others = round(count * (1 - spec.scan_share))
        for number, relation in enumerate(spec.relations):
            at, page, weight = _visits(
                relation, round(others * relation.share), count, spec.accesses_per_second, rng
            )
            times.append(at)
            pages.append(page + self.first[number])
            own = slice(self.first[number], self.first[number + 1])
            self._popularity[own] = np.bincount(page[at < known_share * count], minlength=relation.pages)
            self._weight[own] = relation.share / relation.accesses * weight
        owners = [np.full(len(page), -1) for page in pages]
        if spec.scanned_pages:
            scans = max(round(count * spec.scan_share / spec.scanned_pages), 1)
            at = (np.arange(scans * spec.scanned_pages) + rng.random()) * count / (scans * spec.scanned_pages)
            times.append(at)
            pages.append(self.first[-2] + np.tile(np.arange(spec.scanned_pages), scans))
            owners.append(np.repeat(np.arange(scans), spec.scanned_pages))
        order = np.argsort(np.concatenate(times), kind="stable")
        self.pages = np.concatenate(pages)[order].astype(np.uint32)
        self.owner = np.concatenate(owners)[order]
        self.flags = np.where(self.owner >= 0, BULKREAD, 0).astype(np.uint8)
        self._scanned_pages = spec.scanned_pages
        self.reported = np.arange(len(self.pages))
        scanning = self.owner >= 0
        if scanning.any():
            last = np.zeros(self.owner.max() + 1, dtype=np.int64)
            np.maximum.at(last, self.owner[scanning], self.reported[scanning])
            self.reported[scanning] = last[self.owner[scanning]]

    def misses(self, sizes: list[int], begin: int) -> tuple[NDArray[np.uint64], int]:
        """Return the misses at each size from a position on, and how many accesses there are."""
        edges = np.array([begin, len(self.pages)], dtype=np.uint64)
        found = _native.replay(
            self.pages,
            sizes,
            self._rules,
            windows=edges,
            warm=[self.popular(size) for size in sizes],
            **self._rings(0, len(self.pages)),
        )
        return found["misses"][:, 0], len(self.pages) - begin

    def popular(self, size: int) -> _native.PoolContents:
        """Return a pool of the most popular pages, in no order."""
        order, rng = self._by_popularity
        order = deepcopy(rng).permutation(order[:size])
        counts = np.clip(self._popularity[order], 0, 5)
        return _native.PoolContents(order.astype(np.uint32), counts.astype(np.uint8))

    @cached_property
    def _by_popularity(self) -> tuple[NDArray[np.int64], np.random.Generator]:
        """All pages, the most popular first, and a generator to put some of them in no order."""
        # Of those not visited yet, the likelier ones were visited before: drawn by their rates, without
        # putting any back. A scan's pages come last.
        rng = np.random.default_rng(0)
        drawn = rng.exponential(1.0, len(self._weight)) / np.maximum(self._weight, 1e-300)
        return np.lexsort((drawn, -self._popularity)), rng

    def outcomes(
        self, begin: int, end: int, size: int, state: _native.PoolContents
    ) -> tuple[_native.ReplayOutcomes, int]:
        """Return the outcomes of a part of the accesses, and the number of clock passes meanwhile."""
        rings = self._rings(begin, end)
        part = self.pages[begin:end]
        found = _native.replay_outcomes(part, size, self._rules, warm=state, **rings)
        counted = _native.replay(part, [size], self._rules, warm=[state], **rings)
        return found, int(counted["passes"][0])

    def _rings(self, begin: int, end: int) -> dict[str, Any]:
        at = np.flatnonzero(self.owner[begin:end] >= 0)
        if not len(at):
            return {"flags": self.flags[begin:end]}
        _, owner = np.unique(self.owner[begin:end][at], return_inverse=True)
        return {
            "flags": self.flags[begin:end],
            "owner_access": at.astype(np.uint64),
            "owner": owner.astype(np.uint32),
            "owner_blocks": np.full(int(owner.max()) + 1, self._scanned_pages, dtype=np.uint32),
        }


def _visits(
    relation: SyntheticRelation, accesses: int, span: int, per_second: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return times (0 to `span`) and pages of the accesses of a relation, and how likely each page is."""
    count = max(round(accesses / relation.accesses), 1)
    began = np.sort(rng.random(count)) * span
    page, weight = _pages_of(relation, began / span, rng)
    batch = rng.geometric(1 / relation.accesses, count) if relation.accesses > 1 else np.ones(count, np.int64)
    visit = np.repeat(np.arange(count), batch)
    first = np.zeros(len(visit), dtype=bool)
    first[np.concatenate([[0], np.cumsum(batch)[:-1]])] = True
    gaps = np.where(first, 0.0, rng.exponential(1.0, len(visit)) * relation.gap_seconds * per_second)
    # Times since a visit's first access: sums of its gaps.
    total = np.cumsum(gaps)
    since = total - total[np.flatnonzero(first)][visit]
    return began[visit] + since, page[visit], weight


def _pages_of(
    relation: SyntheticRelation, at: NDArray[np.float64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the page of each visit, given its time from 0 to 1, and how likely each page is at any time."""
    pages, count = relation.pages, len(at)
    even = np.full(pages, 1 / pages)
    match relation.law:
        case "zipf":
            weight = 1.0 / np.arange(1, pages + 1) ** relation.exponent
            edges = np.cumsum(weight) / weight.sum()
            rank = np.minimum(np.searchsorted(edges, rng.random(count)), pages - 1)
            place = rng.permutation(pages)
            spread = np.zeros(pages)
            spread[place] = weight / weight.sum()
            return place[rank], spread
        case "classes":
            hot = max(pages // 15, 1)
            rank = np.where(
                rng.random(count) < 0.8, rng.integers(0, hot, count), rng.integers(0, pages, count)
            )
            place = rng.permutation(pages)
            even *= 0.2
            even[place[:hot]] += 0.8 / hot
            return place[rank], even
        case "moving":
            # Once through the relation in the whole time, in a window of a tenth.
            ahead = rng.exponential(0.1 * pages / 3, count)
            return np.asarray((at * pages + ahead).astype(np.int64) % pages), even
        case "loop":
            return np.arange(count) % pages, even
        case _:
            return np.asarray(rng.integers(0, pages, count)), even


def _write(
    spec: SyntheticSpec, accesses: _Accesses, begin: int, end: int, folder: Path, rng: np.random.Generator
) -> float:
    """Run the observed pool, write what recordings of it would hold; return the passes of the hand."""
    pool = spec.pool_blocks
    slots = np.linspace(begin, end - 1, spec.snapshots + 1)
    edges = np.unique((slots[:-1] + rng.random(spec.snapshots) * np.diff(slots)).astype(np.int64))
    relation_of = np.repeat(np.arange(len(accesses.first) - 1), np.diff(accesses.first))
    tables: dict[str, list[dict[str, Any]]] = {"snapshots": [], "snapshot_times": [], "counters": []}
    state, hand, passes, position = accesses.popular(pool), 0, 0, 0
    missed = np.zeros(len(accesses.pages), dtype=bool)
    hands = []
    for number, edge in enumerate(edges):
        found, rounds = accesses.outcomes(position, int(edge), pool, state)
        missed[position:edge] = found["outcomes"] == 1
        passes += rounds
        hand, position = found["hand"], int(edge)
        buffers = np.flatnonzero(found["buffer_pages"] != 0xFFFFFFFF)
        page = found["buffer_pages"][buffers].astype(np.int64)
        usage = found["buffer_usage_counts"][buffers]
        state = _native.PoolContents(
            page.astype(np.uint32), usage.astype(np.uint8), buffers=buffers.astype(np.uint32), hand=hand
        )
        hands.append(passes * pool + hand)
        seconds = (edge - begin) / spec.accesses_per_second
        tables["snapshots"].append(_snapshot(number, buffers, page, usage, relation_of, accesses.first))
        tables["snapshot_times"].append(
            {
                "snapshot": [number],
                "begin_seconds": [seconds],
                "end_seconds": [seconds],
                "used_frames": [len(buffers)],
            }
        )
    tables["counters"] = _counters(spec, accesses, begin, edges, missed, relation_of)
    for source in ("sql", "peek"):
        meta = EvidenceMeta(
            source=source,
            seconds=(int(edges[-1]) - begin) / spec.accesses_per_second,
            ended_by="time",
            server_version_num=spec.version * 10000,
            shared_buffers_blocks=pool,
            database=_DATABASE,
            database_oid=_DATABASE_OID,
        )
        with EvidenceWriter(folder / f"{source}.evidence", meta, overwrite=True) as writer:
            writer.replace("relations", _relations(accesses.first, scanned=bool(spec.scanned_pages)))
            for table, parts in tables.items():
                for part in parts:
                    writer.append(table, part)
            if source == "peek":
                writer.append("counters", _hand(spec, hands, edges, begin))
            writer.close(meta)
    return (hands[-1] - hands[0]) / pool


def _snapshot(
    number: int,
    buffers: NDArray[np.int64],
    page: NDArray[np.int64],
    usage: NDArray[np.uint8],
    relation_of: NDArray[np.int64],
    first: NDArray[np.int64],
) -> dict[str, Any]:
    count = len(buffers)
    relation = relation_of[page]
    return {
        "snapshot": np.full(count, number, np.int32),
        "frame": (buffers + 1).astype(np.int32),
        "spc": np.full(count, _SPACE, np.uint32),
        "db": np.full(count, _DATABASE_OID, np.uint32),
        "rel": (_FIRST_OID + relation).astype(np.uint32),
        "fork": np.zeros(count, np.uint8),
        "block": (page - first[relation]).astype(np.uint32),
        "usage_count": usage.astype(np.uint8),
        "dirty": np.zeros(count, bool),
        "pinned": np.zeros(count, bool),
    }


def _counters(
    spec: SyntheticSpec,
    accesses: _Accesses,
    begin: int,
    edges: NDArray[np.int64],
    missed: NDArray[np.bool_],
    relation_of: NDArray[np.int64],
) -> list[dict[str, Any]]:
    """Return the counters at the beginning and at each snapshot, cumulative since the beginning of all."""
    samples = np.concatenate([[begin], edges])
    relations = len(accesses.first) - 1
    sample = np.searchsorted(samples, accesses.reported, side="right")
    known = (sample < len(samples)) & (np.arange(len(missed)) < edges[-1])
    key = sample[known] * relations + relation_of[accesses.pages[known]]
    shape = (len(samples), relations)
    reads = np.bincount(key, weights=missed[known], minlength=shape[0] * shape[1])
    hits = np.bincount(key, weights=~missed[known], minlength=shape[0] * shape[1])
    reads, hits = (np.cumsum(counts.reshape(shape), axis=0) for counts in (reads, hits))
    ends = np.zeros(shape[0])
    scans = accesses.reported[accesses.owner >= 0]
    if len(scans):
        done = np.searchsorted(samples, np.unique(scans), side="right")
        ends = np.cumsum(np.bincount(done, minlength=shape[0] + 1)[: shape[0]]).astype(float)
    parts = []
    for number, at in enumerate(samples):
        rows: list[tuple[str, str, str, float]] = [
            ("database", _DATABASE, "blks_read", reads[number].sum()),
            ("database", _DATABASE, "blks_hit", hits[number].sum()),
        ]
        for relation in range(relations):
            oid = str(_FIRST_OID + relation)
            rows.append(("relation", oid, "blks_read", reads[number, relation]))
            rows.append(("relation", oid, "blks_hit", hits[number, relation]))
        if len(scans):
            rows.append(("relation", str(_FIRST_OID + relations - 1), "scans", float(ends[number])))
        scope, named, name, value = zip(*rows, strict=True)
        parts.append(
            {
                "sample": [number] * len(rows),
                "seconds": [(int(at) - begin) / spec.accesses_per_second] * len(rows),
                "scope": list(scope),
                "object": list(named),
                "name": list(name),
                "value": [float(v) for v in value],
            }
        )
    return parts


def _hand(spec: SyntheticSpec, hands: list[int], edges: NDArray[np.int64], begin: int) -> dict[str, Any]:
    count = len(hands)
    return {
        "sample": list(range(1, count + 1)),
        "seconds": [(int(edge) - begin) / spec.accesses_per_second for edge in edges],
        "scope": ["pool"] * count,
        "object": [""] * count,
        "name": ["hand_frames"] * count,
        "value": [float(hand) for hand in hands],
    }


def _relations(first: NDArray[np.int64], *, scanned: bool) -> dict[str, Any]:
    count = len(first) - 1
    sizes = np.diff(first).tolist()
    # Those that are visited pass for indexes: what is visited is not scanned.
    kinds = ["i"] * (count - scanned) + ["r"] * scanned
    return {
        "db": [_DATABASE_OID] * count,
        "database": [_DATABASE] * count,
        "schema": ["public"] * count,
        "name": [f"r{number}" for number in range(count)],
        "kind": kinds,
        "oid": [_FIRST_OID + number for number in range(count)],
        "spc": [_SPACE] * count,
        "rel": [_FIRST_OID + number for number in range(count)],
        "table_oid": [0 if kind == "r" else _FIRST_OID + n for n, kind in enumerate(kinds)],
        "blocks_begin": sizes,
        "blocks_end": sizes,
        "fsm_blocks": [0] * count,
        "vm_blocks": [0] * count,
        "tuples_per_block": [0.0] * count,
    }
