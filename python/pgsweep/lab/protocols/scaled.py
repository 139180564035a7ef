"""What the steps of an experiment are given: its sizes at a scale, and what they give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from pgsweep.lab.catalog import Experiment
from pgsweep.lab.protocol import Done, Place
from pgsweep.units import parse_bytes

Step = Callable[[str, int], Done]
"""Does a job, with a seed for what it draws."""


PROCESSES_BYTES: Final = 32 << 20
"""The memory of a server's processes, which does not shrink with the scale; added to the scaled memory."""

NO_LIMIT_BYTES: Final = 1 << 40
"""The limit of a memory cgroup that shall not limit anything."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """An experiment at a scale.

    Attributes:
        scale: by what the article's sizes are divided.
    """

    experiment: Experiment
    scale: float

    def size_bytes(self, name: str) -> int:
        """Return one of the article's sizes, scaled, in whole blocks of 8 kB."""
        value = self.experiment.sizes[name]
        assert isinstance(value, str)
        return self.scaled_bytes(value)

    def scaled_bytes(self, text: str) -> int:
        """Return a size, scaled, in whole blocks of 8 kB; 128 kB at least."""
        return max(16, round(parse_bytes(text) / self.scale / 8192)) * 8192

    @property
    def memory_bytes(self) -> int:
        """Return the limit of the memory cgroup: the article's memory, scaled, and what processes need."""
        return self.size_bytes("memory") + PROCESSES_BYTES

    def number(self, name: str, *, least: int = 1) -> int:
        """Return one of the article's numbers, scaled."""
        value = self.experiment.sizes[name]
        assert isinstance(value, int | float)
        return max(least, round(value / self.scale))

    def seconds(self, name: str) -> float:
        """Return one of the article's times, scaled."""
        value = self.experiment.sizes[name]
        assert isinstance(value, int | float)
        return value / self.scale

    def parameter(self, name: str) -> float:
        """Return a number that the scale does not change."""
        return float(self.experiment.parameters[name])


@dataclass(frozen=True, slots=True)
class Protocol:
    """The steps of an experiment.

    Attributes:
        settings: of the server in all jobs.
        opened: makes the private server and its tables, which are there until the context ends.
        uses_pgbench: whether it fails without.
    """

    settings: Callable[[Scaled], Mapping[str, str]]
    opened: Callable[[Scaled, Place], AbstractContextManager[Step]]
    uses_pgbench: bool = False


def kilobytes(size_bytes: int) -> str:
    """Return a size as a setting has it."""
    return f"{size_bytes // 1024}kB"
