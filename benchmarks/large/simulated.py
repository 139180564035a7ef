"""Snapshots of simulated pools of 100,000 to a million buffers: `python -m benchmarks.large.simulated`.

A case is drawn and judged like those of benchmarks/calibration, but its recording lasts for 0.05 to 5 clock
passes, after the pool has seen 10 others. The truth is counted over half a pass at least. Where that takes
more than 30 million accesses the pool is smaller, and below 100,000 buffers there is no such case. Even seeds
are for tuning, odd ones for testing. What is in the file of `--write` is not simulated again.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.calibration.bench import parse_lines, simulated
from benchmarks.calibration.evaluate import Outcome, Point, evaluate_synthetic
from benchmarks.calibration.statistics import Pair, describe, pairs
from benchmarks.calibration.synthetic import SyntheticSpec, accesses_of_pass, draw_synthetic

KEPT = Path(__file__).resolve().parent / "simulated.jsonl.xz"
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
SILENT_ERROR = 0.03
_WARM_PASSES = 10.0
"""After 3 that follow a pool of what is most popular, its usage counts are not yet those of its load."""

_MOST_ACCESSES = 30_000_000
_SMALLEST_BLOCKS = 100_000


def drawn(seed: int) -> SyntheticSpec:
    """Return the case of a seed: the load of a small one, more pages, and a shorter recording."""
    small = draw_synthetic(seed)
    rng = np.random.default_rng([1, 79, seed])
    pool = int(np.exp(rng.uniform(np.log(1e5), np.log(1e6))))
    # Of no more pages than 6 times the pool: else most accesses miss, whatever its size.
    pages = sum(relation.pages for relation in small.relations)
    scale = pool * float(np.exp(rng.uniform(np.log(1.3), np.log(6)))) / pages
    relations = tuple(
        msgspec.structs.replace(relation, pages=max(int(relation.pages * scale), 20))
        for relation in small.relations
    )
    return msgspec.structs.replace(
        small,
        pool_blocks=pool,
        relations=relations,
        accesses_per_second=round(float(np.exp(rng.uniform(np.log(3e3), np.log(1e5)))), 1),
        passes=round(float(np.exp(rng.uniform(np.log(0.05), np.log(5)))), 3),
        snapshots=int(rng.integers(6, 21)),
        # One scan would outlast the recording, and is counted when it ends.
        scanned_pages=0,
        scan_share=0.0,
        factors=FACTORS,
        warm_passes=_WARM_PASSES,
        truth_passes=0.5,
        most_accesses=_MOST_ACCESSES,
    )


def fitted(spec: SyntheticSpec) -> SyntheticSpec | None:
    """Return the case, or a smaller one that takes so many accesses; None where that is no large pool."""
    rng = np.random.default_rng([1, 80, spec.seed])
    takes = accesses_of_pass(spec, rng) * (_WARM_PASSES + max(spec.passes, spec.truth_passes))
    factor = min(0.9 * _MOST_ACCESSES / takes, 1.0)
    if spec.pool_blocks * factor < _SMALLEST_BLOCKS:
        return None
    return msgspec.structs.replace(
        spec,
        pool_blocks=round(spec.pool_blocks * factor),
        relations=tuple(
            msgspec.structs.replace(relation, pages=max(round(relation.pages * factor), 20))
            for relation in spec.relations
        ),
    )


def evaluate(seed: int) -> list[Outcome]:
    """Return the outcome of both sources; none where the case cannot be simulated."""
    spec = fitted(drawn(seed))
    return [] if spec is None else evaluate_synthetic(spec)


def is_silent(outcome: Outcome, point: Point) -> bool:
    """Return whether a point is wrong and nobody says so, by the level of its prediction."""
    if outcome.level == "reliable":
        return abs(point.error) > SILENT_ERROR
    width = point.high - point.low
    return not point.low - width <= point.truth <= point.high + width


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return errors, coverage and widths by source, today's size left out; and by passes."""
    found: dict[str, Any] = {}
    for source in ("sql", "peek"):
        own = [outcome for outcome in outcomes if outcome.source == source]
        shown = [outcome for outcome in own if outcome.level in {"reliable", "rough"}]
        points = [pair for pair in pairs(shown) if pair[1].factor != 1.0]
        near = [pair for pair in points if 0.5 <= pair[1].factor <= 2]
        by_passes: dict[str, list[Pair]] = {}
        for pair in points:
            by_passes.setdefault(_passes(pair[0].passes), []).append(pair)
        found[source] = {
            "cases": len(own),
            "answered": len(shown),
            "reliable": sum(outcome.level == "reliable" for outcome in own),
            "all": describe(points),
            "near": describe(near),
            "silent": sum(is_silent(*pair) for pair in points),
            "passes": {name: describe(members) for name, members in sorted(by_passes.items())},
        }
    return found


def _passes(passes: float) -> str:
    for least in (4, 2, 1, 0.5, 0.2):
        if passes >= least:
            return f"{least:g} and more"
    return "below 0.2"


def kept() -> list[Outcome]:
    """Return the committed outcomes."""
    return parse_lines(lzma.decompress(KEPT.read_bytes()).decode().splitlines())


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate what is asked for, and print the figures of each half."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=0, help="none: the committed ones")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help="2 for even or odd ones")
    parser.add_argument("--write", type=Path, metavar="FILE", help="lines; what is there is not run again")
    asked = parser.parse_args(arguments)
    seeds = range(asked.first, asked.first + asked.cases * asked.step, asked.step)
    found = simulated(seeds, 1, asked.write, evaluate) if asked.cases else kept()
    for name, odd in (("tuned_on", 0), ("held_out", 1)):
        half = [one for one in found if int(one.case.partition("-")[0]) % 2 == odd]
        print(json.dumps({name: figures(half)}))


if __name__ == "__main__":
    main()
