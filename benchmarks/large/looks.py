"""What one look at a large pool allows at other sizes, against the truth of simulated pools.

Each case draws a load (Zipf's law of exponent 0.6 to 1.3, with up to 30 % uniform reads) and a pool of
60,000 to 300,000 buffers, fills the pool at least six times over, takes one look at its usage counts, and
counts the misses of pools of half to twice the size over as many accesses. Then the same with the visits
that follow the look, as a trace would show them, until a share of the pool has been replaced. Even seeds were
used to choose where between the bounds the curve lies (sizing/look.py); odd seeds test it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.samples import keep, refuse_debug_build
from pgsweep import _native
from pgsweep.sizing.clock import USUAL
from pgsweep.sizing.look import STATES, VISITS, Look, LookBounds
from pgsweep.sizing.snapshots.rates import SINGLE

HERE = Path(__file__).resolve().parent
FACTORS = (0.5, 0.75, 1.25, 1.5, 2.0)
ACCESSES = 12_000_000
FEWEST_FILLINGS = 6
TRACED_FILLINGS = (0.03, 0.1, 0.3)
"""How much of the pool is replaced while visits are counted; a clock pass replaces 35 to 45 %."""
RULES = _native.Rules(18)


def drawn_accesses(
    random: np.random.Generator, pages: int, exponent: float, uniform: float
) -> NDArray[np.uint32]:
    """Return independent accesses by Zipf's law, a part of them uniform."""
    weights = np.arange(1, pages + 1) ** -exponent
    weights = (1 - uniform) * weights / weights.sum() + uniform / pages
    drawn = np.searchsorted(np.cumsum(weights), random.random(ACCESSES))
    return np.minimum(drawn, pages - 1).astype(np.uint32)


def miss_ratios(accesses: NDArray[np.uint32], sizes: list[int]) -> NDArray[np.float64]:
    """Return the miss ratio of the second half at each size."""
    windows = np.array([len(accesses) // 2, len(accesses)], np.uint64)
    found = _native.replay(accesses, sizes, RULES, windows=windows)
    return np.asarray(found["misses"][:, 0] / found["accesses"][0])


def case_of(seed: int) -> dict[str, Any] | None:
    """Return one case; None where the pool was not filled often enough to be settled."""
    random = np.random.default_rng(seed)
    buffers = int(np.exp(random.uniform(np.log(60_000), np.log(300_000))))
    pages, exponent = int(buffers * random.uniform(2, 6)), float(random.uniform(0.6, 1.3))
    uniform = float(random.choice([0.0, 0.0, 0.05, 0.3]))
    accesses = drawn_accesses(random, pages, exponent, uniform)
    sizes = [round(factor * buffers) for factor in FACTORS]
    today, *truth = miss_ratios(accesses, [buffers, *sizes]).tolist()
    if today * len(accesses) / 2 < FEWEST_FILLINGS * buffers:
        return None
    half = len(accesses) // 2
    pool = _native.replay_outcomes(accesses[:half], buffers, RULES)
    states = np.zeros(pages, dtype=np.int64)
    states[pool["buffer_pages"]] = 1 + pool["buffer_usage_counts"]
    looks = {"look": Look(pages=_counted(states, STATES), batches=[SINGLE], clock=USUAL)}
    for fillings in TRACED_FILLINGS:
        visits = np.bincount(accesses[half : half + int(fillings * buffers / today)], minlength=pages)
        cells = states * VISITS + np.minimum(visits, VISITS - 1)
        looks[f"traced {fillings}"] = Look(
            pages=_counted(cells, STATES * VISITS), batches=[SINGLE], clock=USUAL
        )
    return {
        "seed": seed,
        "buffers": buffers,
        "pages": pages,
        "exponent": round(exponent, 3),
        "uniform": uniform,
        "today": round(today, 6),
        "truth": [round(value, 6) for value in truth],
        "found": {name: _found(look, buffers, sizes, today) for name, look in looks.items()},
    }


def _counted(cells: NDArray[np.int64], many: int) -> NDArray[np.float64]:
    return np.bincount(cells, minlength=many).astype(np.float64)[None, :]


def _found(look: Look, buffers: int, sizes: list[int], today: float) -> dict[str, Any]:
    begin = time.process_time()
    bounds = (
        LookBounds(look, buffers) if look.pages.shape[1] == STATES else LookBounds.of_visits(look, buffers)
    )
    curve = bounds.interval(sizes)
    passes = bounds.look.passes
    return {
        "seconds": round(time.process_time() - begin, 3),
        "passes": None if passes is None else round(passes, 4),
        "misfit": round(bounds.misfit, 3),
        **{
            name: [round(float(value) * today, 6) for value in values]
            for name, values in zip(("point", "low", "high"), curve, strict=True)
        },
    }


def summary_of(cases: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return errors, coverage and widths of some cases, by size."""
    found = [case["found"][name] for case in cases]
    truth = np.array([case["truth"] for case in cases])
    point, low, high = (np.array([one[bound] for one in found]) for bound in ("point", "low", "high"))
    return {
        "cases": len(cases),
        "near_mean": round(float(np.abs(point - truth).mean()), 5),
        "mean_error_by_size": np.abs(point - truth).mean(axis=0).round(5).tolist(),
        "worst_error": round(float(np.abs(point - truth).max()), 5),
        "inside": round(float(((low <= truth) & (truth <= high)).mean()), 4),
        "mean_width_by_size": (high - low).mean(axis=0).round(5).tolist(),
        "near_width": round(float((high - low).mean()), 5),
        "truth_lies_at": ((truth - low) / np.maximum(high - low, 1e-9)).mean(axis=0).round(3).tolist(),
        "seconds": round(float(np.mean([one["seconds"] for one in found])), 3),
    }


def main() -> None:
    """Simulate the cases, keep the samples, print the summary."""
    refuse_debug_build()
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=40)
    given = parser.parse_args()
    cases = []
    for seed in range(given.cases):
        case = case_of(seed)
        print(f"seed {seed}: {'not settled' if case is None else case}", file=sys.stderr, flush=True)
        cases += [] if case is None else [case]
    summary: dict[str, Any] = {"factors": FACTORS}
    for name, odd in (("tuned_on", 0), ("held_out", 1)):
        chosen = [case for case in cases if case["seed"] % 2 == odd]
        kinds = chosen[0]["found"] if chosen else []
        summary[name] = {kind: summary_of(chosen, kind) for kind in kinds}
    keep(HERE, summary, cases, packages=("scipy",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
