"""Which process of this host serves a session."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from pgsweep.host.postmaster import find_postmaster
from pgsweep.pg.catalog.server import read_postmaster


class LocalPostmaster(NamedTuple):
    """The postmaster of a session, on this host.

    Attributes:
        pid: its process.
        start_time_us: `pg_postmaster_start_time()` in microseconds since 2000-01-01.
    """

    pid: int
    start_time_us: int


def local_postmaster(connection: psycopg.Connection[Any]) -> LocalPostmaster:
    """Return the postmaster of a session.

    Raises:
        MissingAbility: the server does not run on this host, or its memory may not be read.
    """
    process = read_postmaster(connection)
    return LocalPostmaster(find_postmaster(*process), process.start_time_us)
