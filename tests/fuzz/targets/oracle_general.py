"""Traces in libCacheSim's oracleGeneral format, plain and compressed, up to the prediction."""

from __future__ import annotations

from pathlib import Path

from pgsweep.sizing.predict import predict
from tests.fuzz.targets import seed_files

_ZSTD = b"\x28\xb5\x2f\xfd"


def seeds() -> list[bytes]:
    return seed_files("oracle_general")


def run_one(data: bytes, workdir: Path) -> str | None:
    path = workdir / ("t.oracleGeneral.zst" if data[:4] == _ZSTD else "t.oracleGeneral")
    path.write_bytes(data)
    return f"{len(predict(path).points)} points"
