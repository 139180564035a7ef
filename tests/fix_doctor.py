"""What the tests of doctor share."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.doctor import Ability, DoctorResult


def abilities(result: DoctorResult) -> dict[str, Ability]:
    return {ability.name: ability for ability in result.abilities}


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A server whose settings and roles may be changed, and that can be reached by TCP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"shared_buffers": "8MB", "listen_addresses": "127.0.0.1", "port": str(port)}
    with Cluster.create(settings=settings) as cluster:
        yield cluster


def tcp(cluster: Cluster, **parts: str) -> str:
    given = {"host": "127.0.0.1", "port": cluster.settings["port"], "user": "postgres", "dbname": "postgres"}
    return make_conninfo("", **{**given, **parts})
