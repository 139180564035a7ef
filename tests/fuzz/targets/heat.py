"""Heat files, up to what `warm plan --heat` makes of them without a server."""

from __future__ import annotations

from pathlib import Path

from pgsweep.warm.heat.file import read_heat
from pgsweep.warm.heat.saved import weigh
from tests.fuzz.mutate import mutate_parquet as mutate
from tests.fuzz.targets import seed_files

__all__ = ["mutate", "run_one", "seeds"]


def seeds() -> list[bytes]:
    return seed_files("heat")


def run_one(data: bytes, workdir: Path) -> str | None:
    path = workdir / "shop.heat"
    path.write_bytes(data)
    heat = read_heat(path)
    weigh(path, heat)
    for part, rows in heat.by_part():
        assert part.fork and heat.block[rows].size >= 0
    return f"{len(heat.parts)} parts"
