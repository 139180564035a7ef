"""What every result carries."""

from __future__ import annotations

import msgspec


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The server that a result is about, and when it was observed; null where that is not known.

    Attributes:
        server: host and port, folder of the socket and port, or name of the service.
        recorded_at: beginning of the observation, UTC, ISO 8601.
    """

    server: str | None = None
    server_version: str | None = None
    database: str | None = None
    recorded_at: str | None = None


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What made a result (versions, machine, command line without passwords), and the server it is about."""

    pgsweep_version: str
    native_build: str
    created_at: str
    command: str
    kernel: str
    architecture: str
    cpus: int
    memory_bytes: int
    python_version: str
    subject: Subject | None = None
