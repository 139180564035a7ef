"""Keep the raw samples of a benchmark, with all that is needed to judge them later."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pgsweep import _native


def refuse_debug_build() -> None:
    """Leave with a message where the native module is not a release build: its times would mean nothing."""
    if _native.build_profile() != "release":
        sys.exit(
            "error: the native module is a debug build\n\nhint: run `make setup`, which builds for release"
        )


def provenance(packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """Describe machine, versions and command of this run.

    Args:
        packages: distributions whose versions matter to the result.
    """
    versions = {"python": platform.python_version(), "pgsweep": _native.__version__}
    for package in ("numpy", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "machine": {
            "processor": _processor(),
            "processors": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "load_average_at_end": os.getloadavg(),
        },
        "versions": versions,
    }


def keep(folder: Path, summary: dict[str, Any], samples: Any, packages: tuple[str, ...] = ()) -> None:
    """Write `samples.json` in a benchmark's folder: provenance, summary, raw samples."""
    content = {**provenance(packages), "summary": summary, "samples": samples}
    (folder / "samples.json").write_text(json.dumps(content, indent=1) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
