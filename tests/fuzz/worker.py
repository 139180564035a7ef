"""The process in which a target runs: `python -m tests.fuzz.worker TARGET ...`, started by run.py.

Before each run the input is written to `current` in the scratch folder and the run's number to `state`, so
that whoever watches knows on which input this process hangs or died.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import shutil
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

from pgsweep.errors import PgsweepError
from tests.fuzz.targets import Target, bombs, load

STATE = struct.Struct("<Q")
MOST_INPUTS = 2000
"""Inputs kept to mutate further."""

RUNS_A_PROCESS = 20_000
"""After so many runs a new process begins, so that what Python itself keeps does not add up."""

DONE, AGAIN, TOO_LARGE = 0, 3, 4

_PLACES = re.compile(r"""`[^`]*`|"[^"]*"|[0-9]+""")
"""What differs from message to message."""


def keep(folder: Path, kind: str, key: str, data: bytes, report: str) -> bool:
    """Keep an input that is a finding, with what happened; return whether it is a new one."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if (folder / f"{name}.txt").exists():
        return False
    (folder / f"{name}.bin").write_bytes(data)
    (folder / f"{name}.txt").write_text(f"{key}\n\n{report}\n", encoding="utf-8", errors="backslashreplace")
    return True


def inputs(target: Target, seed: str) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield inputs for ever: bombs, the seeds, then mutations of what is kept; and the list that keeps."""
    for data in bombs(target.name):
        yield data, []
    kept: list[bytes] = []
    for data in target.seeds():
        yield data, kept
    first = list(target.seeds())
    number = 0
    while True:
        random = Random(f"{seed}/{number}")
        # A right input leads further than one that is refused early.
        parents = first if not kept or random.random() < 0.5 else kept
        yield target.mutate(random.choice(parents), random), kept
        number += 1


def run_once(target: Target, data: bytes, workdir: Path) -> tuple[str, str | None]:
    """Return a word for the outcome, and the traceback where it is a finding."""
    try:
        return target.run_one(data, workdir) or "read", None
    except PgsweepError as error:
        words = f"{error.message} {error.cause or ''}"
        return f"{type(error).__name__}: {_PLACES.sub('_', words)}"[:200], None
    except MemoryError as error:
        return "MemoryError", "".join(traceback.format_exception(error))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "pgsweep" in f.filename] or list(frames)
        where = f"{Path(ours[-1].filename).name}:{ours[-1].name}:{ours[-1].lineno}"
        return f"{type(error).__name__} at {where}", "".join(traceback.format_exception(error))
    except BaseException as error:  # a panic of the Rust module is one
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"{type(error).__name__}: {error}"[:200], "".join(traceback.format_exception(error))
    finally:
        for path in workdir.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def peak_bytes() -> int:
    """Return the largest resident size of this process so far."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found.group(1)) << 10 if found else 0


def main(
    name: str,
    seed: str,
    scratch: Path,
    findings: Path,
    seconds: float,
    most_runs: int,
    most_bytes: int,
    only: Path | None = None,
) -> int:
    # What numpy warns of is not a finding; it would fill the log.
    warnings.simplefilter("ignore")
    target = load(name)
    workdir = scratch / "work"
    workdir.mkdir(exist_ok=True)
    outcomes: set[str] = set()
    with (scratch / "state").open("r+b") as file:
        state = mmap.mmap(file.fileno(), 0)
    end = time.monotonic() + seconds
    given = inputs(target, seed) if only is None else iter([(only.read_bytes(), list[bytes]())])
    for run, (data, kept) in enumerate(given):
        if run and (time.monotonic() > end or run >= most_runs):
            return DONE
        if run >= RUNS_A_PROCESS:
            return AGAIN
        (scratch / "current").write_bytes(data)
        STATE.pack_into(state, 0, run + 1)
        outcome, report = run_once(target, data, workdir)
        if report is not None:
            keep(findings, "exception", outcome, data, report)
        if peak_bytes() > most_bytes:
            return TOO_LARGE
        if outcome not in outcomes and report is None:
            outcomes.add(outcome)
            (scratch / "outcomes").open("a", encoding="utf-8", errors="backslashreplace").write(
                f"{outcome}\n"
            )
            if len(kept) < MOST_INPUTS:
                kept.append(data)
    return DONE


if __name__ == "__main__":
    _, target_name, run_seed, scratch_name, findings_name, run_seconds, runs_, bytes_, *only_ = sys.argv
    code = main(
        target_name,
        run_seed,
        Path(scratch_name),
        Path(findings_name),
        float(run_seconds),
        int(runs_),
        int(bytes_),
        Path(only_[0]) if only_ else None,
    )
    sys.stderr.flush()
    # Without Arrow's own end: rarely, its threads end the process after the last run by "terminate called
    # without an active exception", which would be taken for a death of that input.
    os._exit(code)
