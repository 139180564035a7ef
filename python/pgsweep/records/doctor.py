"""What is possible on a server."""

from __future__ import annotations

import msgspec

from pgsweep.records.common import Provenance
from pgsweep.records.place import Place


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that pgsweep can or cannot do with a server.

    `area` is `server` (what the session may do) or `host` (what this machine allows). `available` is null
    where it is not known. `enable` is the command that makes it available, where there is one. `needed_for`
    names commands of pgsweep, with their options.
    """

    name: str
    area: str
    available: bool | None
    why: str
    enable: str | None
    needed_for: list[str]


class Runnable(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a command works with the server from here.

    Attributes:
        command: of pgsweep; several that are alike, separated by commas.
        state: `works`, `in part` or `not`.
        why: what works, or what is missing.
    """

    command: str
    state: str
    why: str


class DoctorServer(msgspec.Struct, frozen=True, kw_only=True):
    """The server that was asked, as the session sees it; `provider` is the hosted service it belongs to."""

    version: str
    version_num: int
    database: str
    role: str
    superuser: bool
    in_recovery: bool
    shared_buffers_bytes: int
    relations: int
    databases: int
    provider: str | None = None


class DoctorHost(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that pgsweep runs on; the server's process where it runs here too."""

    user: str
    machine: str
    memory_bytes: int
    huge_pages_total: int | None
    huge_pages_free: int | None
    huge_page_bytes: int | None
    postmaster_pid: int | None
    memory_limit_bytes: int | None
    memory_limit_used_bytes: int | None


class DoctorResult(msgspec.Struct, frozen=True, kw_only=True):
    """What can be done with a server from here, and how to enable the rest; it contains no password.

    Attributes:
        place: where the server runs, and who keeps its settings; null in older results.
    """

    schema: str = "pgsweep.doctor/1"
    target: str
    server: DoctorServer | None
    host: DoctorHost
    abilities: list[Ability]
    commands: list[Runnable] = []
    place: Place | None = None
    provenance: Provenance | None = None
