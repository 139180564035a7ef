"""Predicts from the stored evidence of a case and sets the prediction beside its truth."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.calibration.cases import SOURCES, Case, SizeTruth, read_case
from benchmarks.calibration.stretches import Stretch
from benchmarks.calibration.synthetic import SyntheticSpec, draw_synthetic, simulate
from pgsweep.errors import PgsweepError
from pgsweep.evidence.schema import FLAG_SCAN
from pgsweep.evidence.store import Evidence
from pgsweep.sizing.predict import judge as judge_evidence
from pgsweep.units import BLOCK_BYTES

PARTLY_RECORDED = 0.003
"""A recording's own miss ratio and that of the stretches it covers differ by so much only where it saw a part
of one."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A size: what was measured, what is predicted.

    Attributes:
        factor: the size relative to the observed one.
        error: predicted minus measured miss ratio.
        truth_noise: standard error of the truth, as far as its repetition shows it.
        settled: whether the pool was in the state that the workload makes of it, as far as stretches show.
        shown: whether the user sees the point: the curve is not refused, and the interval not too wide.
    """

    factor: float
    truth: float
    predicted: float
    low: float
    high: float
    truth_noise: float = 0.0
    settled: bool = True
    shown: bool = True

    @property
    def error(self) -> float:
        return self.predicted - self.truth

    @property
    def inside(self) -> bool:
        return self.low <= self.truth <= self.high


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one source's evidence of one case came to.

    Attributes:
        kind: `real` or `simulated`.
        level: `reliable`, `rough` or `refused`; `failed` where predict raised an error.
        points: also those of a refused prediction where the method still gives them.
        today: predicted minus measured by the evidence itself, at the observed size.
        replayed_today: the same before the counted ratio took the place of the replayed one (traces).
        passes: of the clock hand while it was recorded.
        scan_share: of the accesses made by sequential scans, from the trace.
        flags: why the case itself is doubtful: `unsettled`, `disturbed`, `partly recorded`.
    """

    case: str
    kind: str
    source: str
    level: str
    reasons: tuple[str, ...]
    points: tuple[Point, ...]
    today: float | None
    passes: float
    scan_share: float
    tags: tuple[str, ...]
    flags: tuple[str, ...] = ()
    predict_seconds: float = 0.0
    replayed_today: float | None = None

    @property
    def worst(self) -> float:
        return max((abs(point.error) for point in self.points if point.settled and point.shown), default=0.0)

    @property
    def mean(self) -> float:
        errors = [abs(point.error) for point in self.points if point.settled]
        return sum(errors) / max(len(errors), 1)


def ratio(truth: SizeTruth, weights: Sequence[float] | None = None) -> float:
    """Return the miss ratio over all counted stretches, or over so much of each."""
    shares = [1.0] * len(truth.stretches) if weights is None else weights
    misses = sum(share * s.misses for share, s in zip(shares, truth.stretches, strict=True))
    return misses / max(
        sum(share * s.accesses for share, s in zip(shares, truth.stretches, strict=True)), 1.0
    )


def covered(case: Case, source: str, seconds: float) -> list[float]:
    """Return which part of each counted stretch a recording of that many seconds saw.

    A recording has a length, while stretches are numbers of transactions: on a busy machine they take longer,
    and what the recording did not see is no part of what it predicts.
    """
    began = case.recorded_seconds.get(source)
    if began is None:
        return [1.0] * len(case.observed.stretches)
    parts = []
    for stretch in case.observed.stretches:
        inside = min(stretch.began_seconds + stretch.seconds, began + seconds)
        inside -= max(stretch.began_seconds, began)
        parts.append(min(max(inside / max(stretch.seconds, 1e-9), 0.0), 1.0))
    return parts if sum(parts) > 0 else [1.0] * len(parts)


def today(case: Case) -> SizeTruth:
    """Return the truth at the observed size."""
    return next(t for t in case.truth if t.blocks == case.specification.observed_blocks)


def repeat_noise(case: Case) -> float:
    """Return the standard error of a measured ratio, from the same stretches run twice at today's size."""
    differences = [
        a.misses / max(a.accesses, 1) - b.misses / max(b.accesses, 1)
        for a, b in zip(today(case).stretches, case.observed.stretches, strict=True)
    ]
    if len(differences) < 2:
        return abs(differences[0])
    # The spread, and the difference itself where it is larger than the spread explains.
    return float(np.hypot(np.std(differences, ddof=1), np.mean(differences)) / math.sqrt(len(differences)))


def flags(case: Case) -> tuple[str, ...]:
    """Return what makes a case doubtful."""
    found = []
    if not all(settled(case).values()):
        found.append("unsettled")
    if abs(ratio(case.observed) - ratio(today(case))) > 0.01 + 2 * repeat_noise(case):
        found.append("disturbed")
    return tuple(found)


def settled(case: Case) -> dict[int, bool]:
    """Return by size in blocks whether the pool's state had come to rest.

    A stretch has transactions of its own, so ratios vary from one to the next at all sizes alike. What is
    compared is the ratio relative to that at today's size, whose pool is turned over soonest of those that
    matter: its later half must agree with the earlier within a tenth, or within 0.002 of the miss ratio.
    """
    reference = [_ratio(stretch) for stretch in today(case).stretches]
    found = {}
    for truth in case.truth:
        ratios = [_ratio(stretch) for stretch in truth.stretches]
        relative = [r / max(t, 1e-9) for r, t in zip(ratios, reference, strict=True)]
        half = len(relative) // 2
        early, late = np.mean(relative[:half]), np.mean(relative[-half:])
        moved = abs(late - early)
        level = float(np.mean(ratios)) / max(float(np.mean(relative)), 1e-9)
        found[truth.blocks] = bool(moved <= 0.1 * max(early, late) or moved * level <= 0.002)
    return found


def _ratio(stretch: Stretch) -> float:
    return stretch.misses / max(stretch.accesses, 1)


def passes_of(folder: Path) -> float:
    """Return the passes of the clock hand in the recording: as memory shows, else as the recorder guessed."""
    peek = folder / "peek.evidence"
    if peek.exists():
        evidence = Evidence.open(peek)
        counters = evidence.table("counters")
        hand = counters["value"][(counters["scope"] == "pool") & (counters["name"] == "hand_frames")]
        if len(hand) > 1:
            return float(hand.max() - hand.min()) / evidence.meta.shared_buffers_blocks
    sql = folder / "sql.evidence"
    return Evidence.open(sql).meta.overhead.get("laps", 0.0) if sql.exists() else 0.0


def scan_share_of(folder: Path) -> float:
    """Return the share of the database's accesses that sequential scans made, from the trace."""
    path = folder / "trace.evidence"
    if not path.exists():
        return 0.0
    evidence = Evidence.open(path)
    accesses = evidence.table("accesses", ["db", "flags"])
    ours = accesses["db"] == evidence.meta.database_oid
    return float(((accesses["flags"] & FLAG_SCAN) > 0)[ours].mean()) if ours.any() else 0.0


def evaluate(folder: Path) -> list[Outcome]:
    """Return the outcome of each source of a stored case."""
    case = read_case(folder)
    share, passes, doubts, noise = scan_share_of(folder), passes_of(folder), flags(case), repeat_noise(case)
    sizes = [truth.blocks * BLOCK_BYTES for truth in case.truth]
    outcomes = []
    for source in SOURCES:
        path = folder / f"{source}.evidence"
        if not path.exists():
            continue
        weights = covered(case, source, Evidence.open(path).meta.seconds)
        measured = {truth.blocks * BLOCK_BYTES: ratio(truth, weights) for truth in case.truth}
        outcomes.append(
            _same_stretch(
                ratio(case.observed, weights),
                path,
                measured,
                sizes,
                Outcome(
                    case=folder.name,
                    kind="real",
                    source=source,
                    level="failed",
                    reasons=(),
                    points=(),
                    today=None,
                    passes=round(passes, 2),
                    scan_share=round(share, 4),
                    tags=case.specification.tags,
                    flags=doubts,
                ),
                observed_bytes=case.specification.observed_blocks * BLOCK_BYTES,
                noise=noise,
                at_rest={blocks * BLOCK_BYTES: rests for blocks, rests in settled(case).items()},
            )
        )
    return outcomes


def _same_stretch(counted: float, *arguments: Any, **options: Any) -> Outcome:
    """Judge as `judge` does; where the recording did not see what was counted, no point can be compared.

    The part of a stretch that a recording saw need not be like the whole of it.
    """
    outcome = judge(*arguments, **options)
    now = [point.predicted for point in outcome.points if point.factor == 1.0]
    if not now or outcome.today is None or abs(now[0] - outcome.today - counted) <= PARTLY_RECORDED:
        return outcome
    points = tuple(msgspec.structs.replace(point, settled=False) for point in outcome.points)
    return msgspec.structs.replace(outcome, points=points, flags=(*outcome.flags, "partly recorded"))


def evaluate_simulated(seed: int) -> list[Outcome]:
    """Simulate the case of a seed and return the outcome of both sources; nothing of it is kept."""
    return evaluate_synthetic(draw_synthetic(seed))


def evaluate_synthetic(spec: SyntheticSpec) -> list[Outcome]:
    """Simulate a case and return the outcome of both sources; nothing of it is kept."""
    with tempfile.TemporaryDirectory() as folder:
        simulated = simulate(spec, Path(folder))
        return [
            judge(
                Path(folder, f"{source}.evidence"),
                {blocks * BLOCK_BYTES: value for blocks, value in simulated.truth.items()},
                [blocks * BLOCK_BYTES for blocks in spec.sizes_blocks()],
                Outcome(
                    case=f"{spec.seed}-simulated",
                    kind="simulated",
                    source=source,
                    level="failed",
                    reasons=(),
                    points=(),
                    today=None,
                    passes=round(simulated.passes, 2),
                    scan_share=round(simulated.scan_share, 4),
                    tags=spec.tags(),
                ),
                observed_bytes=spec.pool_blocks * BLOCK_BYTES,
                noise=0.0,
            )
            for source in ("sql", "peek")
        ]


def judge(
    evidence: Path,
    measured: dict[int, float],
    sizes: Sequence[int],
    frame: Outcome,
    *,
    observed_bytes: int,
    noise: float,
    at_rest: Mapping[int, bool] | None = None,
) -> Outcome:
    """Predict from evidence and return the outcome.

    Args:
        measured: the truth by size in bytes.
        frame: what is known of the outcome before.
        at_rest: by size in bytes, whether the truth had settled; without, all had.
    """
    began = time.monotonic()
    try:
        found = judge_evidence(evidence, sizes_bytes=sizes)
        kept, _ = found.shown()
    except PgsweepError as error:
        # An error that says why is a refusal.
        return msgspec.structs.replace(frame, level="refused", reasons=(str(error),))
    except Exception as error:
        return msgspec.structs.replace(frame, reasons=(f"{type(error).__name__}: {error}",))
    estimate = found.estimate
    # The truth is that of the transactions that were recorded.
    low, high = (estimate.low, estimate.high) if estimate.of_stretch is None else estimate.of_stretch
    points = tuple(
        Point(
            factor=round(blocks * BLOCK_BYTES / observed_bytes, 4),
            truth=round(measured[blocks * BLOCK_BYTES], 6),
            predicted=round(float(ratio), 6),
            low=round(float(below), 6),
            high=round(float(above), 6),
            truth_noise=round(noise, 6),
            settled=at_rest is None or at_rest[blocks * BLOCK_BYTES],
            shown=kept.usable and blocks in kept.sizes_blocks,
        )
        for blocks, ratio, below, above in zip(
            estimate.sizes_blocks, estimate.miss_ratio, low, high, strict=True
        )
    )
    now = [point.predicted for point in points if point.factor == 1.0]
    return msgspec.structs.replace(
        frame,
        level=kept.level,
        reasons=tuple(reason.text for reason in kept.reasons),
        points=points,
        today=round(now[0] - found.observed.miss_ratio, 6) if now else None,
        predict_seconds=round(time.monotonic() - began, 2),
        replayed_today=(
            None
            if estimate.replayed_today is None
            else round(estimate.replayed_today - found.observed.miss_ratio, 6)
        ),
    )
