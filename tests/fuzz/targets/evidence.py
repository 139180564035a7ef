"""Folders of evidence, up to the prediction and the exported trace."""

from __future__ import annotations

from pathlib import Path

from pgsweep.evidence.oracle_export import export_oracle_general
from pgsweep.sizing.predict import predict
from pgsweep.ui.results import to_json
from tests.fuzz.mutate import mutate_folder as mutate
from tests.fuzz.mutate import unpack
from tests.fuzz.targets import seed_files

__all__ = ["mutate", "run_one", "seeds"]


def seeds() -> list[bytes]:
    return seed_files("evidence")


def run_one(data: bytes, workdir: Path) -> str | None:
    folder = workdir / "fuzzed.evidence"
    for name, content in unpack(data).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    result = predict(folder, sizes_bytes=[128 << 10, 1 << 20])
    to_json(result)
    if result.source == "trace":
        export_oracle_general(folder, workdir / "out.oracleGeneral")
    return f"{result.source} {result.verdict.level}"
