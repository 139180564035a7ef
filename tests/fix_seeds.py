"""Evidence among the seeds of fuzzing."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.mutate import unpack
from tests.fuzz.targets import SEEDS


def evidence(tmp_path: Path, name: str) -> Path:
    """Unpack one of the seeds of fuzzing."""
    folder = tmp_path / f"{name}.evidence"
    for file, content in unpack((SEEDS / "evidence" / f"{name}.zip").read_bytes()).items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
