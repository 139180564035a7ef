"""The command line as a process: arguments, two streams, an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PGSWEEP = str(Path(sys.executable).with_name("pgsweep"))


def run(
    *arguments: str | bytes, cwd: Path | None = None, env: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run pgsweep as a process in a plain environment."""
    plain = {"COLUMNS": "80", "LC_ALL": "C.UTF-8", **(env or {})}
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [PGSWEEP, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**kept, **plain},
        input=stdin,
    )
