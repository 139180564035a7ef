"""What every result carries."""

from __future__ import annotations

import msgspec


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What made a result: versions, machine and command line (without passwords)."""

    pgsweep_version: str
    native_build: str
    created_at: str
    command: str
    kernel: str
    architecture: str
    cpus: int
    memory_bytes: int
    python_version: str
