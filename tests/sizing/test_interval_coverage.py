"""Whether intervals hold: predictions from simulated pools, over several laws of popularity.

`make bench NAME=calibration` does this with hundreds of drawn cases, real ones among them; here are a few
small ones, each of one law, whose truth is replayed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.calibration.synthetic import SyntheticRelation, SyntheticSpec, simulate
from pgsweep.sizing.predict import judge
from pgsweep.units import BLOCK_BYTES

POOL_BLOCKS = 512
SIZES_BLOCKS = (POOL_BLOCKS // 2, POOL_BLOCKS, 2 * POOL_BLOCKS)


def relation(pages: int, law: str, exponent: float = 1.0, share: float = 1.0) -> SyntheticRelation:
    return SyntheticRelation(
        pages=pages, law=law, exponent=exponent, share=share, accesses=1.0, gap_seconds=0.0
    )


LAWS = {
    "zipf 0.7": (relation(4000, "zipf", 0.7),),
    "zipf 1.1": (relation(6000, "zipf", 1.1),),
    "uniform": (relation(1500, "uniform"),),
    "two classes": (relation(4000, "classes"),),
    "zipf and uniform": (relation(3000, "zipf", 0.9, 0.7), relation(1500, "uniform", share=0.3)),
}
SCANS = {
    # A table that stays in the pool; one of more than a quarter of it, so through a ring, now and then;
    # one of three times the pool, often.
    "uniform, a small table scanned": ((relation(1500, "uniform"),), 60, 0.05, "rough"),
    "zipf, a ring now and then": ((relation(3000, "zipf", 0.9),), 200, 0.02, "rough"),
    "zipf, a large table scanned": ((relation(3000, "zipf", 0.9),), 1500, 0.3, "refused"),
}


@dataclass(frozen=True)
class Judged:
    """A prediction beside the truth; `points` are truth, prediction and the ends of the interval."""

    level: str
    points: list[tuple[float, ...]]

    @property
    def inside(self) -> int:
        return sum(low <= truth <= high for truth, _, low, high in self.points)

    @property
    def worst(self) -> float:
        return max(abs(predicted - truth) for truth, predicted, _, _ in self.points)


def judged(spec: SyntheticSpec, folder: Path) -> Judged:
    """Return what is predicted of a simulated case; by the two kinds of snapshots in turn."""
    truth = simulate(spec, folder).truth
    found = judge(
        folder / f"{('sql', 'peek')[spec.seed % 2]}.evidence",
        sizes_bytes=[blocks * BLOCK_BYTES for blocks in SIZES_BLOCKS],
    )
    estimate = found.estimate
    columns = zip(estimate.sizes_blocks, estimate.miss_ratio, estimate.low, estimate.high, strict=True)
    points = [(truth[blocks], *map(float, point)) for blocks, *point in columns if blocks in SIZES_BLOCKS]
    assert len(points) == len(SIZES_BLOCKS)
    return Judged(level=found.shown()[0].level, points=points)


@pytest.fixture(scope="module")
def without_scans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    folder = tmp_path_factory.mktemp("laws")
    return {
        name: judged(
            SyntheticSpec(
                seed=seed,
                version=(15, 18)[seed % 2],
                pool_blocks=POOL_BLOCKS,
                passes=30,
                snapshots=25,
                relations=relations,
            ),
            folder / str(seed),
        )
        for seed, (name, relations) in enumerate(LAWS.items(), start=1)
    }


@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_predicted_at_half_and_at_twice_the_size(law: str, without_scans: dict[str, Judged]) -> None:
    result = without_scans[law]
    assert result.level in {"reliable", "rough"}, result
    assert result.worst < 0.02, result


def test_nine_of_ten_truths_lie_inside(without_scans: dict[str, Judged]) -> None:
    results = without_scans.values()
    points = [point for result in results for point in result.points]
    assert len(points) == 15
    assert sum(result.inside for result in results) >= 13, results
    # And not because they are wide.
    assert sum(high - low for _, _, low, high in points) / len(points) < 0.03


@pytest.mark.parametrize("name", SCANS)
def test_with_scans_intervals_hold_or_the_prediction_is_refused(name: str, tmp_path: Path) -> None:
    relations, pages, share, level = SCANS[name]
    spec = SyntheticSpec(
        seed=3,
        version=18,
        pool_blocks=POOL_BLOCKS,
        passes=30,
        snapshots=25,
        relations=relations,
        scanned_pages=pages,
        scan_share=share,
    )
    result = judged(spec, tmp_path)
    assert result.level == level, result
    assert level == "refused" or result.inside >= 2, result
    assert result.worst < 0.03, result
