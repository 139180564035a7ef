"""How right predictions are on generated workloads, and how often their intervals hold.

    make bench NAME=calibration                                        judge the committed lines again
    make bench NAME=calibration OPTIONS="--seed 2 --count 10 --keep DIR"   run cases on real servers
    make bench NAME=calibration OPTIONS="--seed 2 --simulated 1000"        simulate cases
    python -m benchmarks.calibration.bench --reevaluate DIR            predict again from kept cases

Seeds go up by two: a run stays among the even ones, which are for tuning, or the odd ones, which are for
testing. Each real case is kept in DIR/SEED-VERSION, evidence and truth; what is there already is not run
again. Every line is written as soon as it is known.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from benchmarks.calibration.cases import run_case
from benchmarks.calibration.evaluate import Outcome, evaluate, evaluate_simulated
from benchmarks.calibration.generator import draw
from benchmarks.calibration.statistics import summary
from pgsweep.errors import PgsweepError

HERE = Path(__file__).parent
LINES = HERE / "cases.jsonl.xz"
_POINT = ("factor", "truth", "predicted", "low", "high", "truth_noise", "settled", "shown")
BINDIRS = {"wheel": None, "debian": Path("/usr/lib/postgresql/15/bin")}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    outcomes: list[Outcome] = []
    if options.count:
        options.keep.mkdir(parents=True, exist_ok=True)
        run(options.seed, options.count, options.version, options.keep)
        outcomes += reevaluate(options.keep, options.seeds, options.jobs)
    elif options.reevaluate is not None:
        outcomes += reevaluate(options.reevaluate, options.seeds, options.jobs)
    if options.simulated:
        seeds = range(options.seed, options.seed + 2 * options.simulated, 2)
        outcomes += simulated(seeds, options.jobs, options.write)
    if not (options.count or options.reevaluate or options.simulated):
        kept = lzma.decompress(LINES.read_bytes()).decode().splitlines()
        outcomes = [outcome for outcome in parse_lines(kept) if _wanted(outcome.case, options.seeds)]
    elif options.write is not None and not options.simulated:
        options.write.write_text("".join(line(outcome) + "\n" for outcome in outcomes))
    if options.source:
        outcomes = [outcome for outcome in outcomes if outcome.source == options.source]
    print(json.dumps(summary(outcomes)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=2, help="the first seed")
    parser.add_argument("--count", type=int, default=0, help="how many cases on a server, every second seed")
    parser.add_argument("--simulated", type=int, default=0, help="how many simulated cases")
    parser.add_argument("--version", choices=sorted(BINDIRS), default="wheel", help="which server")
    parser.add_argument("--source", choices=("sql", "peek", "trace"), help="judge this source only")
    parser.add_argument("--keep", type=Path, default=HERE / "kept", help="folder of the real cases")
    parser.add_argument("--reevaluate", type=Path, metavar="DIR", help="predict again from kept cases")
    parser.add_argument("--seeds", choices=("even", "odd", "all"), default="all", help="judge these only")
    parser.add_argument("--jobs", type=int, default=2, help="predictions at once")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="the lines; simulated ones are added to it"
    )
    return parser


def run(first: int, count: int, version: str, folder: Path) -> None:
    """Run the cases that are not there yet; one that fails is named and left out."""
    for seed in range(first, first + 2 * count, 2):
        kept = folder / f"{seed}-{version}"
        if (kept / "case.json").exists():
            continue
        try:
            case = run_case(draw(seed), kept, bindir=BINDIRS[version])
        except (PgsweepError, psycopg.Error) as error:
            with (folder / "failed.jsonl").open("a") as failed:
                failed.write(json.dumps({"case": kept.name, "error": _said(error)}) + "\n")
            print(f"case {kept.name} failed: {_said(error)}", file=sys.stderr, flush=True)
            continue
        for outcome in evaluate(kept):
            with (folder / "lines.jsonl").open("a") as lines:
                lines.write(line(outcome) + "\n")
        print(f"case {kept.name}: {case.seconds}", file=sys.stderr, flush=True)


def _said(error: Exception) -> str:
    cause = getattr(error, "cause", None)
    return f"{error} ({cause})" if cause else str(error)


def reevaluate(folder: Path, seeds: str, jobs: int) -> list[Outcome]:
    """Predict from all kept cases, several at once."""
    cases = [path.parent for path in sorted(folder.glob("*/case.json")) if _wanted(path.parent.name, seeds)]
    began = time.monotonic()
    # Forked processes would inherit the locks of threads that they do not have.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as processes:
        found = [outcome for outcomes in processes.map(evaluate, cases) for outcome in outcomes]
    print(f"{len(cases)} cases judged in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def simulated(
    seeds: Sequence[int],
    jobs: int,
    written: Path | None,
    judged: Callable[[int], list[Outcome]] = evaluate_simulated,
) -> list[Outcome]:
    """Simulate cases and judge them; those whose lines are in the file are taken from there."""
    found = parse_lines(written.read_text().splitlines()) if written and written.exists() else []
    there = {outcome.case for outcome in found}
    missing = [seed for seed in seeds if f"{seed}-simulated" not in there]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as processes:
        for outcomes in processes.map(judged, missing):
            found += outcomes
            if written is not None:
                with written.open("a") as lines:
                    lines.writelines(line(outcome) + "\n" for outcome in outcomes)
    wanted = {f"{seed}-simulated" for seed in seeds}
    return [outcome for outcome in found if outcome.case in wanted]


def _wanted(name: str, seeds: str) -> bool:
    return seeds == "all" or (int(name.split("-", maxsplit=1)[0]) % 2 == 1) == (seeds == "odd")


def line(outcome: Outcome) -> str:
    """Return an outcome as one compact line of JSON, points as lists in the order of their fields."""
    shown: dict[str, Any] = msgspec.to_builtins(outcome)
    shown["points"] = [[getattr(point, name) for name in _POINT] for point in outcome.points]
    shown |= {"mean": round(outcome.mean, 5), "worst": round(outcome.worst, 5) if outcome.points else None}
    return json.dumps(shown, separators=(",", ":"))


def parse_lines(lines: Iterable[str]) -> list[Outcome]:
    """Return outcomes from their lines."""
    found = []
    for text in lines:
        fields = json.loads(text)
        fields["points"] = [dict(zip(_POINT, point, strict=True)) for point in fields["points"]]
        del fields["mean"], fields["worst"]
        found.append(msgspec.convert(fields, Outcome))
    return found


if __name__ == "__main__":
    sys.exit(main())
