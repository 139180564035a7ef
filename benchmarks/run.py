"""Run one benchmark by name, or all, and end with one JSON object on the last line.

A benchmark is a folder `benchmarks/NAME` with a `bench.py`: run as a module it keeps its raw samples in
`benchmarks/NAME/samples.json` (see `samples.py`) and prints its summary as a JSON object on its last line.
With a name that object is the last line here too; without, the last line holds all of them by name. What
follows `--` goes to the benchmark that was named.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def names() -> list[str]:
    """List the benchmarks that there are."""
    return sorted(path.parent.name for path in HERE.glob("*/bench.py"))


def run(name: str, options: list[str]) -> dict[str, Any] | None:
    """Run one benchmark, passing its output on; return its summary, or nothing where it failed."""
    command = [sys.executable, "-m", f"benchmarks.{name}.bench", *options]
    last = ""
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    if process.returncode != 0:
        print(f"benchmark {name} failed with exit code {process.returncode}", file=sys.stderr)
        return None
    summary: Any = json.loads(last)
    if not isinstance(summary, dict):
        raise TypeError(f"the last line of benchmark {name} is no JSON object: {last}")
    return summary


def main(arguments: list[str]) -> int:
    """Run what the arguments name."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    arguments, options = arguments[:at], arguments[at + 1 :]
    known = names()
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    if options and len(arguments) != 1:
        print("options are for one benchmark, which must be named", file=sys.stderr)
        return 2
    if len(arguments) == 1:
        return 0 if run(arguments[0], options) is not None else 1
    summaries = {}
    for name in arguments or known:
        print(f"== {name}", flush=True)
        summaries[name] = run(name, [])
    print(json.dumps(summaries))
    return 0 if all(summary is not None for summary in summaries.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
