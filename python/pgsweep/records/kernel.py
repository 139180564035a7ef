"""The kernel's settings."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance
from pgsweep.records.place import Place


class KernelSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of the kernel that matters to a database host.

    Attributes:
        good: no change is recommended.
        recommendation: null where it is good.
        source: who says so.
        certainty: `documented` (PostgreSQL's or the kernel's documentation recommends it) or `experience`
        (widely
            advised, its worth on this host not measured).
        command: sets it until the next boot, as root; null where there is nothing to set, or no command that
        does.
    """

    name: str
    value: str
    good: bool
    recommendation: str | None
    reason: str
    source: str
    certainty: str
    command: str | None


class KernelResult(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's settings that matter to a database host: read, not changed.

    Attributes:
        place: where the server runs, or pgsweep where no server is seen; null in older results.
        database: the session's; null in older results, and where there was no session.
    """

    schema: str = "pgsweep.kernel/1"
    machine: str
    memory_bytes: int
    server_version: str | None
    postmaster_pid: int | None
    settings: list[KernelSetting]
    missing: list[Missing] = []
    place: Place | None = None
    database: str | None = None
    provenance: Provenance | None = None
