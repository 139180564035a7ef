"""What snapshots and traces say of loads of real jobs, and what restarts at other sizes show.

    make bench NAME=jobs                                               figures of the committed samples
    make bench NAME=jobs OPTIONS="--run queue,shop --keep DIR"         run loads on the wheel's PostgreSQL 18
    make bench NAME=jobs OPTIONS="--run all --version debian --keep DIR"   on Debian's 15
    make bench NAME=jobs OPTIONS="--keep DIR --write"                  predict again from what is kept
    make bench NAME=jobs OPTIONS="--in-order"                          of loads whose pages come in order

A load is run as a case of benchmarks/calibration is: one aged database, a copy for each size, four counted
stretches, and once more at today's size with all three recordings at once. DIR/LOAD-VERSION holds evidence
and truth; what is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg

from benchmarks.calibration.bench import BINDIRS, line, parse_lines
from benchmarks.calibration.cases import Case, Lengths, read_case, run_case
from benchmarks.calibration.evaluate import Outcome, Point, evaluate
from benchmarks.calibration.specification import Specification
from benchmarks.jobs import in_order
from benchmarks.jobs.loads import LOADS
from pgsweep.errors import PgsweepError
from pgsweep.units import Z90

HERE = Path(__file__).parent
LINES = HERE / "cases.jsonl.xz"
LINES_IN_ORDER = HERE / "in_order.jsonl.xz"
LENGTHS = Lengths(age_seconds=25.0, warm_seconds=30.0, hurry=4.0, stretch_seconds=11.0)
LENGTHS_IN_ORDER = Lengths(age_seconds=25.0, warm_seconds=90.0, hurry=6.0, stretch_seconds=11.0)
NEAR = (0.5, 2.0)
SILENT_ERROR = 0.03


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, judge, print the summary."""
    options = _parser().parse_args(arguments)
    loads, lengths, lines = LOADS, LENGTHS, LINES
    if options.in_order:
        loads, lengths, lines = in_order.LOADS, LENGTHS_IN_ORDER, LINES_IN_ORDER
    if options.run:
        chosen = loads if options.run == "all" else {name: loads[name] for name in options.run.split(",")}
        run(chosen, options.version, options.keep, lengths)
    if options.keep is None:
        outcomes = parse_lines(lzma.decompress(lines.read_bytes()).decode().splitlines())
    else:
        outcomes = [outcome for path in sorted(options.keep.glob("*/case.json")) for outcome in judged(path)]
        for outcome in outcomes:
            print(line(outcome), file=sys.stderr)
    if options.write:
        lines.write_bytes(lzma.compress("".join(line(outcome) + "\n" for outcome in outcomes).encode()))
    print(json.dumps(summary(outcomes)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", default="", help=f"all, or some of {','.join(LOADS)}")
    parser.add_argument(
        "--in-order", action="store_true", help=f"other loads: {','.join(in_order.LOADS)}, and their samples"
    )
    parser.add_argument("--version", choices=sorted(BINDIRS), default="wheel", help="which server")
    parser.add_argument("--keep", type=Path, help="folder of evidence and truth")
    parser.add_argument("--write", action="store_true", help="make the committed samples of what is kept")
    return parser


def run(
    loads: Mapping[str, Callable[[], Specification]], version: str, folder: Path, lengths: Lengths
) -> None:
    """Run the loads that are not there yet; one that fails is named and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, load in loads.items():
        kept = folder / f"{name}-{version}"
        if (kept / "case.json").exists():
            continue
        try:
            case = run_case(load(), kept, bindir=BINDIRS[version], lengths=lengths)
        except (PgsweepError, psycopg.Error) as error:
            print(f"{kept.name} failed: {error} ({getattr(error, 'cause', None)})", file=sys.stderr)
            continue
        late = round(lateness(case), 2)
        print(f"{kept.name}: {case.seconds}, pace {case.pace}, late {late}", file=sys.stderr, flush=True)


def lateness(case: Case) -> float:
    """Return by how much of its nominal length the slowest counted stretch was late, at any size.

    A stretch is a number of transactions at a rate; on a machine too busy for that rate it takes longer.
    """
    stretches = [one for size in (*case.truth, case.observed) for one in size.stretches]
    return max(one.seconds for one in stretches) / case.lengths.stretch_seconds - 1.0


def judged(path: Path) -> list[Outcome]:
    """Return the outcome of each source of a kept case, each point with the noise of its own truth.

    The truth at a size has the transactions that were recorded. So its noise is that of the same ones run
    twice, as at today's size, and no more than by what stretches of other transactions differ at that size.
    """
    most = {}
    case = read_case(path.parent)
    for truth in case.truth:
        ratios = np.array([one.misses / max(one.accesses, 1) for one in truth.stretches])
        factor = round(truth.blocks / case.specification.observed_blocks, 4)
        most[factor] = round(float(ratios.std(ddof=1) / np.sqrt(len(ratios))), 6)

    def with_noise(point: Point) -> Point:
        return msgspec.structs.replace(point, truth_noise=min(point.truth_noise, most[point.factor]))

    return [
        msgspec.structs.replace(outcome, points=tuple(map(with_noise, outcome.points)))
        for outcome in evaluate(path.parent)
    ]


def inside(point: Point) -> bool:
    """Return whether the truth lies in the interval once its own noise is allowed for."""
    noise = Z90 * point.truth_noise
    below, above = point.predicted - point.low, point.high - point.predicted
    return -math.hypot(below, noise) <= point.truth - point.predicted <= math.hypot(above, noise)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the keys of the bars, by source."""
    found: dict[str, Any] = {"cases": len({outcome.case for outcome in outcomes})}
    silent = 0
    for source in ("sql", "peek", "trace"):
        own = [outcome for outcome in outcomes if outcome.source == source]
        answered = [outcome for outcome in own if outcome.level in {"reliable", "rough"}]
        points = [p for outcome in answered for p in outcome.points if p.shown and p.settled]
        others = [p for p in points if p.factor != 1.0]
        near = [p for p in others if NEAR[0] <= p.factor <= NEAR[1]]
        found |= {
            f"answered_{source}": _mean([outcome in answered for outcome in own]),
            f"reliable_{source}": sum(outcome.level == "reliable" for outcome in own),
            f"inside_{source}": _mean([inside(p) for p in others]),
            f"strict_{source}": _mean([p.inside for p in others]),
            f"width_{source}": _mean([p.high - p.low for p in near]),
            f"{source}_mean": _mean([abs(p.error) for p in others]),
            f"{source}_worst": max((round(abs(p.error), 5) for p in others), default=None),
            f"{source}_points": len(others),
        }
        silent += sum(_silent(outcome) for outcome in answered)
    return found | {"silent_failures": silent}


def _silent(outcome: Outcome) -> bool:
    """Return whether an answer is far off and does not say so, the noise of the truth allowed for."""
    for point in outcome.points:
        if not (point.shown and point.settled):
            continue
        noise = 2 * point.truth_noise
        if outcome.level == "reliable" and abs(point.error) > SILENT_ERROR + noise:
            return True
        width = point.high - point.low
        outside = max(point.low - point.truth, point.truth - point.high, 0.0)
        if outcome.level == "rough" and outside > width + noise:
            return True
    return False


def _mean(values: Sequence[float]) -> float | None:
    return round(float(np.mean(values)), 5) if values else None


if __name__ == "__main__":
    sys.exit(main())
