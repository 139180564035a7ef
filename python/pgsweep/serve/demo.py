"""`pgsweep serve --demo`: a private server under a load, to see the pages without a server of one's own.

It has a socket and no TCP port, and is removed at the end, also after `kill -9`
(pg/private/keeper.py); so is the history, which lies beside it. The load is that of `pgsweep demo` at a set
pace, so that it takes a part of one processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pgsweep.pg.catalog.abilities import read_extension
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.refusals import explained
from pgsweep.progress import Progress
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database
from pgsweep.testbed.workloads import MIX

SCALE: Final = 10
"""Of pgbench's tables: 150 MB, nearly five times shared_buffers."""

_SETTINGS: Final = {"shared_buffers": "32MB", "track_io_timing": "on", "max_wal_size": "64MB"}
_RATE: Final = 200.0
_STATEMENTS: Final = "pg_stat_statements"


@contextmanager
def demo_server(
    progress: Progress, *, bindir: Path | None = None, scale: int = SCALE
) -> Iterator[tuple[str, Path]]:
    """Yield the conninfo of a private server under load, and a folder for the history, until the block ends.

    Args:
        progress: told what is made.
        bindir: the server's bin folder; the wheel's PostgreSQL 18 by default.
        scale: of pgbench's tables, 15 MB each.

    Raises:
        ClusterError: no server, no room, or no pgbench.
    """
    progress.stage("making a private PostgreSQL with a load")
    with Cluster.create(bindir, _SETTINGS) as cluster:
        create_database(cluster, scale)
        if _offers_statements(cluster):
            cluster.restart({"shared_preload_libraries": _STATEMENTS, "compute_query_id": "on"})
            cluster.create_extensions(DATABASE, _STATEMENTS)
        with RunningWorkload(cluster, MIX, seed=1, scale=scale, rate_per_second=_RATE):
            yield cluster.conninfo(DATABASE), cluster.run_directory / "history"


def _offers_statements(cluster: Cluster) -> bool:
    with connect(cluster.conninfo(DATABASE)) as connection, explained():
        return read_extension(connection, _STATEMENTS, _STATEMENTS).available is not None
