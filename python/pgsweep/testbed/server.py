"""What a workload needs of the server that it runs on: a private cluster, or a server of somebody's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsweep.pg.private.bindir import ServerBinaries

Restart = Callable[[Mapping[str, str], bool], None]
"""Restarts a server with these settings beside those of all runs; with True the page cache is empty then."""


class Server(Protocol):
    """A server that runs.

    `pgsweep.pg.private.cluster.Cluster` is one.
    """

    @property
    def binaries(self) -> ServerBinaries:
        """Return the client programs."""

    @property
    def run_directory(self) -> Path:
        """Return a folder for the scripts and the output of workloads."""

    def conninfo(self, dbname: str = ..., /) -> str:
        """Return a connection string for sessions of this process."""


def for_programs(server: Server, dbname: str) -> tuple[str, dict[str, str]]:
    """Return the connection string for programs like pgbench, and their environment.

    libpq's variables in our own environment are meant for another server. A password stands in the
    environment: arguments are seen by every user of the host.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    environment["LC_ALL"] = "C"
    parts = {name: value for name, value in conninfo_to_dict(server.conninfo(dbname)).items() if value}
    password = parts.pop("password", None)
    if password is not None:
        environment["PGPASSWORD"] = str(password)
    return make_conninfo("", **parts), environment
