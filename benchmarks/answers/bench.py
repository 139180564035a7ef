"""How long answers take: processor seconds and peak memory of `predict` and `advise`, of two versions.

Of this version each question is asked again, for CSV instead of JSON: the answer is kept beside the evidence.
After the curve, second questions are asked of both versions: other memory, some of the sizes, a report.

Run by `make bench NAME=answers OPTIONS="--before PROGRAM"`, where PROGRAM is the `pgsweep` of another
checkout. Each question is asked of both versions in turn, several times, and the least of the processor
seconds counts: other work on the machine only adds to them. Evidence is simulated: snapshots of a pool of
64 MB, a trace of 400,000 accesses, and one of 4.1 million accesses of a database of 15 GB, all with what a
recording on the server's host says of its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks.answers.evidence import TraceSize, write_snapshots, write_trace
from benchmarks.samples import keep, refuse_debug_build
from pgsweep.evidence.schema import ANSWERS
from pgsweep.units import BLOCK_BYTES

HERE = Path(__file__).resolve().parent
_MB: Final = 1 << 20
_TRACES: Final = {
    "trace, 400,000 accesses": TraceSize(
        accesses=400_000, blocks=65_536, pool_blocks=8192, memory_bytes=512 * _MB
    ),
    "trace, 4.1 million accesses, 15 GB": TraceSize(
        accesses=4_100_000, blocks=15 * 131_072, pool_blocks=131_072, memory_bytes=8192 * _MB
    ),
}
_COMMANDS: Final = ["predict", "advise"]
_AGAIN: Final = "again"
_NOW = Path(sys.executable).with_name("pgsweep")


def write_all(folder: Path) -> dict[str, Path]:
    """Write the evidence that is not there yet; return the folder of each, what is answered soon first."""
    found = {name: folder / f"trace{number}.evidence" for number, name in enumerate(_TRACES)}
    for name, size in _TRACES.items():
        if not found[name].exists():
            write_trace(found[name], size)
    snapshots = {f"snapshots, {source}, 64 MB": folder / f"{source}.evidence" for source in ("sql", "peek")}
    if not all(path.exists() for path in snapshots.values()):
        write_snapshots(folder, pool_blocks=8192, memory_bytes=512 * _MB)
    small, large = found
    return {small: found[small], **snapshots, large: found[large]}


def second_questions(evidence: Path) -> dict[str, list[str]]:
    """Return what is asked after a curve is known, by what it is."""
    meta = json.loads((evidence / "meta.json").read_text(encoding="utf-8"))
    memory_mb = int(meta["host"]["memory_bytes"]) // _MB
    pool_mb = int(meta["shared_buffers_blocks"]) * BLOCK_BYTES // _MB
    sizes = ",".join(f"{size}MB" for size in (pool_mb // 2, pool_mb, 2 * pool_mb))
    return {
        "--ram, twice": ["--json", "--ram", f"{2 * memory_mb}MB"],
        "--ram, a fifth less": ["--json", "--ram", f"{memory_mb * 4 // 5}MB"],
        "--sizes, of those computed": ["--json", "--sizes", sizes],
        "--out report.html": ["--out", str(evidence.parent / "report.html")],
    }


def asked(program: Path, command: str, evidence: Path, *options: str) -> dict[str, float]:
    """Ask once; return what it took."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PGSWEEP"))
    }
    # What a user has: modules that are compiled already; of no checkout is anything changed.
    environment["PYTHONPYCACHEPREFIX"] = str(evidence.parent / "compiled")
    environment["XDG_STATE_HOME"] = str(evidence.parent / "state")
    process = subprocess.Popen(
        [program, command, evidence, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{program} {command} {evidence.name} ended with {process.returncode}")
    return {
        "processor_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_bytes": used.ru_maxrss * 1024,
    }


def measured(
    programs: dict[str, Path], evidence: dict[str, Path], commands: list[str], times: int
) -> Iterator[dict[str, Any]]:
    """Yield what each question took, by version, and what it took to ask the first ones again."""
    folder = next(iter(evidence.values()))
    for program in programs.values():
        for command in commands:
            asked(program, command, folder, "--json")
    for name, folder in evidence.items():
        for command in commands:
            second = second_questions(folder) if command == "predict" else {}
            rows: dict[str, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
            for _ in range(times):
                for version, program in programs.items():
                    (folder / ANSWERS).unlink(missing_ok=True)
                    rows[command][version].append(asked(program, command, folder, "--json"))
                    for question, options in second.items():
                        sample = asked(program, command, folder, *options)
                        rows[f"{command} {question}"][version].append(sample)
                rows[command][_AGAIN].append(asked(_NOW, command, folder, "--csv"))
            for question, samples in rows.items():
                yield {"command": question, "evidence": name, **samples}


def summed_up(row: dict[str, Any]) -> dict[str, float]:
    """Return the least processor seconds and the largest memory of each version."""
    found = {}
    for version in [name for name in row if name not in ("command", "evidence")]:
        found[f"{version}_seconds"] = min(one["processor_seconds"] for one in row[version])
        found[f"{version}_mb"] = round(max(one["peak_bytes"] for one in row[version]) / _MB)
    return found


def main() -> None:
    """Measure, keep the samples, print the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="pgsweep of an earlier version, asked the same")
    parser.add_argument("--commands", nargs="+", choices=_COMMANDS, default=_COMMANDS, help="only these")
    parser.add_argument("--evidence", nargs="+", help="only of these, by a part of their names")
    parser.add_argument("--folder", type=Path, help="where evidence of an earlier run may be")
    parser.add_argument("--times", type=int, default=3, help="each question is asked so often")
    options = parser.parse_args()
    refuse_debug_build()
    programs = {"before": options.before} if options.before else {}
    programs["now"] = _NOW
    rows = []
    summary: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="pgsweep-answers-") as own:
        folder = options.folder or Path(own)
        # Of a process its peak memory is known, or that of the one that made it, where this is more.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
            evidence = other.submit(write_all, folder).result()
        wanted = options.evidence or [""]
        evidence = {name: path for name, path in evidence.items() if any(part in name for part in wanted)}
        for row in measured(programs, evidence, options.commands, options.times):
            rows.append(row)
            name = f"{row['command']}: {row['evidence']}"
            summary[name] = summed_up(row)
            print(name, summary[name], flush=True)
            keep(HERE, summary, rows)  # each row, as all of them take long
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
