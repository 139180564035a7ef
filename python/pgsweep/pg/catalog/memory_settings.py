"""The settings that decide how much memory a server may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from pgsweep.pg.queries import load
from pgsweep.pg.session.answers import unexpected
from pgsweep.pg.session.rows import all_rows

_VACUUM_LIMIT_BYTES: Final = 1 << 30
"""Before version 17 VACUUM took 1 GB at most, whatever maintenance_work_mem said (vacuumlazy.c)."""


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What the server may take, in bytes where it is memory; None if this version lacks the setting."""

    max_connections: int
    shared_buffers: int
    shared_memory: int | None
    work_mem: int
    hash_mem_multiplier: float
    temp_buffers: int
    maintenance_work_mem: int
    autovacuum_work_mem: int
    autovacuum_workers: int
    parallel_workers: int
    logical_decoding_work_mem: int
    logical_slots: int
    own_work_mem: list[tuple[str, int]]

    @property
    def largest_node(self) -> int:
        """What one hash may take; a sort takes work_mem alone."""
        return round(self.work_mem * max(1.0, self.hash_mem_multiplier))

    def vacuum(self, version_num: int) -> int:
        """What one autovacuum worker may take."""
        wanted = self.autovacuum_work_mem if self.autovacuum_work_mem >= 0 else self.maintenance_work_mem
        return wanted if version_num >= 170000 else min(wanted, _VACUUM_LIMIT_BYTES)


_NEEDED: Final = (
    "max_connections",
    "shared_buffers",
    "work_mem",
    "hash_mem_multiplier",
    "temp_buffers",
    "maintenance_work_mem",
    "autovacuum_work_mem",
    "autovacuum_max_workers",
    "max_parallel_workers",
    "logical_decoding_work_mem",
    "logical slots",
)
_MOST_BYTES: Final = 2**31 * 1024 * 8
"""An upper bound of all settings: INT_MAX in kB or in blocks (guc_tables.c)."""


def _check(connection: psycopg.Connection[Any], values: dict[str, float]) -> None:
    """Check that each setting is there, and in the limits of all.

    Raises:
        UnexpectedAnswer: it is not.
    """
    for name in _NEEDED:
        if not -1024 <= values.get(name, -2048) <= _MOST_BYTES:
            raise unexpected(connection, f"setting `{name}`")


def read_memory_settings(connection: psycopg.Connection[Any]) -> MemorySettings:
    """Return the settings as they are for this session's role."""
    rows = all_rows(connection, "budget")
    values: dict[str, float] = dict(rows)
    _check(connection, values)
    size = values.get("shared_memory_size")
    # -1 kB: not set.
    own = values["autovacuum_work_mem"]
    return MemorySettings(
        max_connections=int(values["max_connections"]),
        shared_buffers=int(values["shared_buffers"]),
        shared_memory=None if size is None else int(size),
        work_mem=int(values["work_mem"]),
        hash_mem_multiplier=values["hash_mem_multiplier"],
        temp_buffers=int(values["temp_buffers"]),
        maintenance_work_mem=int(values["maintenance_work_mem"]),
        autovacuum_work_mem=int(own) if own >= 0 else -1,
        autovacuum_workers=int(values["autovacuum_max_workers"]),
        parallel_workers=int(values["max_parallel_workers"]),
        logical_decoding_work_mem=int(values["logical_decoding_work_mem"]),
        logical_slots=int(values["logical slots"]),
        own_work_mem=list(
            connection.execute(
                load("own_work_mem", connection.info.server_version), (int(values["work_mem"]),)
            )
        ),
    )
