"""The curve of misses, disk reads and throughput, and the size advised, against servers restarted at sizes.

    make bench NAME=advise                                              judge the committed samples again
    make bench NAME=advise OPTIONS="--run zipf tpcb --ratio 1:2 --version 18 --rounds 2 --keep DIR"
    make bench NAME=advise OPTIONS="--judge --keep DIR"                  predict again from kept recordings

Run as root, where memory cgroups can be made. A private server gets 192 MB of memory; its database is as
large, twice or four times as large. The load is recorded once at 16 MB of shared_buffers, as a trace and as
snapshots, and advised. Then the server is restarted at each size, in random order, in several rounds, and
counted when it has settled; its throughput is compared in turns with that of a second server at 16 MB. What
is done has its line in samples.jsonl and is not done again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.advise.cases import BINDIRS, SCALES, Case, Samples, run_case
from benchmarks.advise.judge import predict_case, summary
from benchmarks.advise.tables import page
from benchmarks.advise.verifying import run_verify
from benchmarks.advise.workloads import WORKLOADS
from benchmarks.samples import provenance, refuse_debug_build
from pgsweep.errors import MissingAbility

HERE = Path(__file__).parent


def main() -> None:
    options = _parser().parse_args()
    options.folder.mkdir(exist_ok=True)
    samples = Samples(options.folder / "samples.jsonl")
    kept = options.folder / "predictions.jsonl"
    cases = [
        Case(WORKLOADS[name], ratio, version)
        for version in options.version
        for ratio in options.ratio
        for name in options.run
    ]
    if cases:
        refuse_debug_build()
        options.keep.mkdir(parents=True, exist_ok=True)
        samples.add("run", "", **provenance())
    for case in cases:
        try:
            run_case(case, samples, options)
            if options.verify:
                run_verify(case, samples, options)
        except MissingAbility as error:
            sys.exit(f"error: nothing can be measured here\n\ncause: {error.message}")
    predictions = [json.loads(line) for line in _lines(kept)]
    known = {one["case"] for one in predictions}
    for case_name in samples.cases():
        if options.judge or case_name not in known:
            found = predict_case(case_name, samples, options.keep)
            if found:
                predictions = [one for one in predictions if one["case"] != case_name] + found
                _write(kept, predictions)
    figures = summary(samples, predictions)
    (options.folder / "results.md").write_text(page(samples, predictions, figures))
    print(json.dumps(figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", nargs="+", choices=list(WORKLOADS), default=[], help="loads to run")
    parser.add_argument("--ratio", nargs="+", choices=list(SCALES), default=["1:2"], help="memory : database")
    parser.add_argument("--version", nargs="+", choices=list(BINDIRS), default=["18"], help="of PostgreSQL")
    parser.add_argument("--rounds", type=int, default=2, help="how often each size is measured")
    parser.add_argument("--trace", type=float, default=12.0, help="seconds of the trace")
    parser.add_argument("--sql", type=float, default=30.0, help="seconds of the snapshots")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds after which it is counted anyway")
    parser.add_argument("--count", type=int, default=8, help="seconds that are counted")
    parser.add_argument("--turns", type=float, default=30.0, help="seconds of turns for the throughput")
    parser.add_argument("--keep", type=Path, default=Path("build/advise"), help="folder of the recordings")
    parser.add_argument("--folder", type=Path, default=HERE, help="of samples, predictions and results")
    parser.add_argument("--verify", type=int, default=0, metavar="N", help="restart and verify N times")
    parser.add_argument("--after", type=float, default=8.0, help="seconds of the trace that is verified")
    parser.add_argument(
        "--judge", action="store_true", help="predict all cases again, where recordings are kept"
    )
    return parser


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _write(path: Path, predictions: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in predictions))


if __name__ == "__main__":
    main()
