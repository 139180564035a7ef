"""Files that psql gathered, plain and compressed: imported, read back, and some predicted from."""

from __future__ import annotations

import zlib
from pathlib import Path

from pgsweep.evidence.gathered import import_gathered
from pgsweep.evidence.schema import TABLES
from pgsweep.evidence.store import Evidence
from pgsweep.sizing.predict import predict
from tests.fuzz.mutate import mutate_rows as mutate
from tests.fuzz.targets import seed_files

__all__ = ["mutate", "run_one", "seeds"]


def seeds() -> list[bytes]:
    return seed_files("gathered")


def run_one(data: bytes, workdir: Path) -> str | None:
    path, evidence = workdir / "shop.gathered", workdir / "shop.evidence"
    path.write_bytes(data)
    imported = import_gathered(path, evidence)
    assert imported.snapshots > 0
    made = Evidence.open(evidence)
    rows = sum(len(next(iter(made.table(name).values()))) for name in TABLES if made.has(name))
    assert rows > 0
    verdict = ""
    # A prediction takes ten times as long as an import.
    if zlib.crc32(data) % 10 == 0:
        verdict = predict(evidence, sizes_bytes=[256 << 10, 4 << 20]).verdict.level
    return f"{imported.ended_by}, {len(imported.warnings)} warnings {verdict}"
