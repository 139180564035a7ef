"""What the lab itself costs; with --all every published experiment, kept in this folder.

Run by `make bench NAME=lab`: a grid of 24 cells with 3 repetitions and runs of 2 seconds, by the command line
as a user runs it, in about five minutes. Overhead is all time outside of set-up and measuring, with the start
of the program and with the control runs. The bar: under 5%.

`make bench NAME=lab OPTIONS=--all` is `pgsweep lab run --all` at the default scales, as root in about half
an hour. Its runs are in build/lab.samples, so what was stopped goes on; then report, verdicts and samples are
put here. `OPTIONS="--keep FOLDER"` puts here what another call of `pgsweep lab run --all -o lab.html -o
lab.json` has left in a folder.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.lab.store import read_samples
from pgsweep.records.lab import LabAllResult, LabClaim, LabResult
from pgsweep.ui.results import read_result
from pgsweep.units import format_plain

HERE = Path(__file__).parent
RUN_FOLDER = HERE.parents[1] / "build" / "lab"
PGSWEEP = Path(sys.executable).parent / "pgsweep"
_DATA = re.compile(r'<script type="application/json" id="pgsweep-[a-z]+">.*?</script>\n?', re.DOTALL)
CELLS = 24
REPETITIONS = 3
MOST_OVERHEAD = 0.05
GRID = f"""
repetitions = {REPETITIONS}
scale = 2
seed = 1
caches = ["cold", "prewarmed"]
clients = [1, 4]
[settings]
shared_buffers = ["16MB", "32MB", "64MB"]
[[workload]]
builtin = "select-only"
seconds = 2
[[workload]]
builtin = "tpcb-like"
seconds = 2
"""


def overhead() -> dict[str, Any]:
    """Run the grid; return where its time went."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "grid.toml").write_text(GRID)
        begin = time.monotonic()
        command = [str(PGSWEEP), "lab", "run", "grid.toml", "-o", "grid.json"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        elapsed = time.monotonic() - begin
        result = msgspec.json.decode((folder / "grid.json").read_bytes(), type=LabResult)
        runs = read_samples(folder / "grid.samples.jsonl")[1]
    assert len(result.cells) == CELLS
    assert all(len(cell.runs) == REPETITIONS for cell in result.cells)
    assert result.overhead_ratio is not None
    known = result.overhead_seconds / result.overhead_ratio
    control = sum((run.control_processor_seconds or 0.0) + (run.control_disk_seconds or 0.0) for run in runs)
    outside = elapsed - (known - result.overhead_seconds) + control
    summary = {
        "cells": CELLS,
        "repetitions": REPETITIONS,
        "runs": len(runs),
        "elapsed_seconds": round(elapsed, 2),
        "setup_seconds": round(known - result.overhead_seconds - result.measure_seconds - control, 2),
        "measure_seconds": round(result.measure_seconds, 2),
        "control_seconds": round(control, 2),
        "lab_seconds": round(result.overhead_seconds, 2),
        "start_and_end_seconds": round(elapsed - known, 2),
        "overhead_ratio": round(outside / elapsed, 4),
        "holds": outside / elapsed < MOST_OVERHEAD,
    }
    keep(HERE, summary, msgspec.to_builtins(runs))
    return summary


def every() -> dict[str, Any]:
    """Run every experiment, or what is missing, and keep all."""
    RUN_FOLDER.mkdir(parents=True, exist_ok=True)
    command = [str(PGSWEEP), "lab", "run", "--all", "-o", "lab.html", "-o", "lab.json"]
    subprocess.run(command, cwd=RUN_FOLDER, check=True, stdout=subprocess.DEVNULL)
    return kept_from(RUN_FOLDER)


def kept_from(folder: Path) -> dict[str, Any]:
    """Put report, verdicts and samples of a folder here, and return the verdicts."""
    result = read_result(folder / "lab.json")
    assert isinstance(result, LabAllResult)
    # The data in the report lies beside it, in a twentieth of the size.
    page = _DATA.sub("", (folder / "lab.html").read_text(encoding="utf-8"))
    (HERE / "lab.html").write_text(page, encoding="utf-8")
    (HERE / "lab.json.xz").write_bytes(lzma.compress((folder / "lab.json").read_bytes(), preset=9))
    samples = HERE / "samples"
    shutil.rmtree(samples, ignore_errors=True)
    samples.mkdir()
    for each in result.results:
        text = (folder / "lab.samples" / f"{each.name}.samples.jsonl").read_bytes()
        (samples / f"{each.name}.jsonl.xz").write_bytes(lzma.compress(text, preset=9))
    (HERE / "verdicts.md").write_text(verdicts(result))
    claims = [claim for each in result.results if each.experiment for claim in each.experiment.claims]
    return {
        "experiments": len(result.results),
        "skipped": [each.name for each in result.skipped],
        "failed_cells": sum(bool(cell.failures) for each in result.results for cell in each.cells),
        "claims": len(claims),
        **{
            verdict.replace(" ", "_"): sum(claim.verdict == verdict for claim in claims)
            for verdict in ("holds", "does not hold here", "cannot tell")
        },
        "seconds": round(result.seconds),
        "report_bytes": (HERE / "lab.html").stat().st_size,
        "samples_bytes": sum(path.stat().st_size for path in samples.iterdir()),
    }


def verdicts(result: LabAllResult) -> str:
    """Return the conclusions of all experiments as a page of Markdown."""
    lines = [
        "# Verdicts",
        "",
        f"PostgreSQL {result.server_version}, {result.machine}. Ratios of medians; in brackets their 95%",
        "intervals, with fewer than 5 runs the smallest and the largest ratio that two runs give. Made by",
        "`benchmarks/lab/bench.py`; all figures: lab.html.",
    ]
    for each in result.results:
        assert each.experiment is not None
        taken = each.setup_seconds + each.measure_seconds
        lines += [
            "",
            f"## {each.experiment.number} {each.name}: {each.experiment.question}",
            "",
            f"Scale {format_plain(each.experiment.scale)}, {each.runs_done} runs, {taken:.0f} s within runs.",
            "",
            "| conclusion | expected | published | here | verdict |",
            "|---|---|---:|---:|---|",
            *(_row(claim) for claim in each.experiment.claims),
        ]
    for skipped in result.skipped:
        lines += ["", f"## {skipped.number} {skipped.name}: not run here", "", skipped.why]
    return "\n".join(lines) + "\n"


def _row(claim: LabClaim) -> str:
    here = "" if claim.here is None else f"{claim.here:.3g}"
    if claim.low is not None and claim.high is not None:
        here += f" ({claim.low:.3g} to {claim.high:.3g})"
    published = "" if claim.published is None else f"{claim.published:.3g}"
    verdict = claim.verdict + (f": {claim.reason}" if claim.reason else "")
    cells = (claim.text, claim.expected, published, here, verdict)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--all", action="store_true", help="run every experiment and keep the result")
    what.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the result that is in a folder")
    chosen = parser.parse_args()
    refuse_debug_build()
    folder: Path | None = chosen.keep
    work = every if chosen.all else overhead
    print(json.dumps(work() if folder is None else kept_from(folder)))


if __name__ == "__main__":
    main()
