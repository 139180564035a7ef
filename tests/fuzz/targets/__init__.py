"""What a target is: a module of this package with two functions, and a third where bytes are too coarse.

    def seeds() -> list[bytes]:
        '''Return inputs that are right, and those that were findings once.'''

    def run_one(data: bytes, workdir: Path) -> str | None:
        '''Read one input. Return a word for what it was, or None. Raise PgsweepError to refuse it.'''

    def mutate(data: bytes, random: Random) -> bytes:
        '''Return the input with something changed. Without this function bytes are changed.'''

A finding is any other exception, a run that takes more than 5 s or 500 MB, and a process that dies.
`workdir` is an empty folder, emptied after each run. The word that is returned, or the message of the error,
steers the search: an input with a new one is mutated further.
"""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.mutate import mutate_bytes

SEEDS = Path(__file__).parent.parent / "seeds"
PACKED = ".zlib"


@dataclass(frozen=True)
class Target:
    name: str
    seeds: Callable[[], list[bytes]]
    run_one: Callable[[bytes, Path], str | None]
    mutate: Callable[[bytes, Random], bytes]


def target_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Target:
    module = importlib.import_module(f"{__name__}.{name}")
    return Target(name, module.seeds, module.run_one, getattr(module, "mutate", mutate_bytes))


def seed_files(name: str) -> list[bytes]:
    """Return the contents of the files in seeds/NAME, in the order of their names."""
    return [seed(path) for path in sorted((SEEDS / name).iterdir())]


def seed(path: Path) -> bytes:
    """Return an input that is kept; long ones are kept compressed."""
    data = path.read_bytes()
    return zlib.decompress(data) if path.suffix == PACKED else data
