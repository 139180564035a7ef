"""Single steps on private servers, out of which the experiments of `pgsweep lab` are put together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from pgsweep.errors import ClusterError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.failures import first_line
from pgsweep.testbed.pgbench import RunningWorkload
from pgsweep.testbed.server import Server
from pgsweep.testbed.workloads import Workload

_WINDOW = 3
_STEADY_WITHIN = 0.1
_POLL_SECONDS = 0.05
_SPARE_SECONDS = 120.0
"""After that a workload whose caller was killed ends by itself."""
_BATCH_PAGES = 50_000
_PAD_BYTES = 7000
"""Of a row that leaves no room for another on its page."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a workload did.

    Attributes:
        values: one a second, or one an execution.
        warm_up_seconds: that passed before.
        steady: whether the warm-up ended because the values were steady; None where there was none.
    """

    values: list[float]
    warm_up_seconds: float = 0.0
    steady: bool | None = None


def is_steady(values: Sequence[float]) -> bool:
    """Return whether the last three values and the three before have means within 10% of each other."""
    if len(values) < 2 * _WINDOW:
        return False
    last, before = sum(values[-_WINDOW:]), sum(values[-2 * _WINDOW : -_WINDOW])
    return abs(last - before) <= _STEADY_WITHIN * max(last, before)


def measure_seconds(
    server: Server,
    workload: Workload,
    seconds: int,
    *,
    seed: int,
    scale: int,
    warm_up_seconds: float | None,
    advance: Callable[[float], None],
) -> Measurement:
    """Return the transactions of each second of a workload.

    Args:
        server: where; must run.
        workload: what.
        seconds: how many are measured.
        seed: pgbench's.
        scale: of pgbench's tables.
        warm_up_seconds: how long to wait at most until the workload is steady; None measures from the start.
        advance: called with the seconds since the start.

    Raises:
        ClusterError: pgbench ended by itself.
    """
    begin = time.monotonic()
    longest_seconds = (warm_up_seconds or 0.0) + seconds + _SPARE_SECONDS
    with RunningWorkload(
        server, workload, seed=seed, scale=scale, timed=True, longest_seconds=longest_seconds
    ) as running:
        first, steady = (0, None) if warm_up_seconds is None else (-1, False)
        warmed = 0.0
        while True:
            values = [tps for _, tps in running.seconds()]
            elapsed = time.monotonic() - begin
            if first < 0 and warm_up_seconds is not None:
                steady = is_steady(values)
                if steady or elapsed >= warm_up_seconds:
                    first, warmed = len(values), elapsed
            elif len(values) >= first + seconds:
                return Measurement(values[first : first + seconds], warmed, steady)
            running.check()
            advance(elapsed)
            time.sleep(_POLL_SECONDS)


def measure_statements(
    server: Server,
    database: str,
    text: str,
    *,
    clients: int,
    warm_up_seconds: float | None,
    advance: Callable[[float], None],
) -> Measurement:
    """Return the seconds that the statements of an SQL file take in each of the clients, all at once.

    Args:
        server: where; must run.
        database: its name.
        text: the file.
        clients: sessions.
        warm_up_seconds: how long to execute them before at most, until they are steady; None not at all.
        advance: called with the seconds since the start.

    Raises:
        ClusterError: a statement fails.
    """
    begin = time.monotonic()
    with ExitStack() as closing:
        try:
            sessions = [
                closing.enter_context(psycopg.connect(server.conninfo(database), autocommit=True))
                for _ in range(clients)
            ]
            means: list[float] = []
            steady: bool | None = None if warm_up_seconds is None else False
            while warm_up_seconds is not None and not steady and time.monotonic() - begin < warm_up_seconds:
                taken = _together(sessions, text)
                means.append(sum(taken) / len(taken))
                advance(time.monotonic() - begin)
                steady = is_steady(means)
            warmed = time.monotonic() - begin if warm_up_seconds is not None else 0.0
            return Measurement(_together(sessions, text), warmed, steady)
        except psycopg.Error as error:
            raise ClusterError("a statement failed", cause=first_line(error)) from error


def _together(sessions: Sequence[psycopg.Connection[Any]], text: str) -> list[float]:
    """Execute the text in all sessions at once and return the seconds of each."""
    taken = [0.0] * len(sessions)
    failed: list[psycopg.Error] = []

    def work(number: int) -> None:
        begin = time.monotonic()
        try:
            sessions[number].execute(text.encode())
        except psycopg.Error as error:
            failed.append(error)
        taken[number] = time.monotonic() - begin

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return taken


def run_sql(cluster: Cluster, database: str, *statements: str) -> list[tuple[Any, ...]]:
    """Execute statements in a session of their own; return the rows of the last, where it has any.

    Raises:
        ClusterError: one fails.
    """
    rows: list[tuple[Any, ...]] = []
    try:
        with psycopg.connect(cluster.conninfo(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        raise ClusterError("a statement failed", cause=first_line(error)) from error
    return rows


def explain(cluster: Cluster, database: str, statement: str) -> dict[str, Any]:
    """Execute a statement and return its seconds and blocks, as EXPLAIN (ANALYZE, BUFFERS) counts them."""
    [[[report]]] = run_sql(cluster, database, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}")
    names = ("Hit", "Read", "Dirtied", "Written")
    blocks = {f"{name.lower()}_blocks": report["Plan"][f"Shared {name} Blocks"] for name in names}
    return {"seconds": report["Execution Time"] / 1000, **blocks}


@contextmanager
def open_sessions(
    cluster: Cluster, database: str, count: int, *statements: str
) -> Iterator[list[psycopg.Connection[Any]]]:
    """Keep a number of sessions open, each of which has executed the statements.

    Raises:
        ClusterError: a session fails, also within the context.
    """
    try:
        with ExitStack() as closing:
            made = []
            for _ in range(count):
                session = closing.enter_context(psycopg.connect(cluster.conninfo(database), autocommit=True))
                run_in(session, *statements)
                made.append(session)
            yield made
    except psycopg.Error as error:
        raise ClusterError("a session failed", cause=first_line(error)) from error


def run_in(session: psycopg.Connection[Any], *statements: str) -> None:
    """Execute statements in a session that `open_sessions` keeps, which names what fails."""
    for statement in statements:
        session.execute(statement.encode())


def make_spread_table(
    cluster: Cluster, database: str, name: str, pages: int, *, fillfactor: int = 100
) -> None:
    """Make a table with one row a page, so that a scan of it is short: `id` (its primary key), `v`, `pad`.

    Args:
        cluster: where.
        database: its name.
        name: of the table.
        pages: of the table.
        fillfactor: 50 leaves room for another version of each row on its page.
    """
    pad_bytes = _PAD_BYTES if fillfactor > 50 else _PAD_BYTES // 2
    run_sql(
        cluster,
        database,
        f"CREATE TABLE {name} (id int PRIMARY KEY, v int, pad text) WITH (fillfactor = {fillfactor})",
        f"ALTER TABLE {name} ALTER pad SET STORAGE PLAIN",
        f"INSERT INTO {name} SELECT g, 0, repeat('x', {pad_bytes}) FROM generate_series(1, {pages}) AS g",
        f"VACUUM (FREEZE) {name}",
    )


def read_pages(cluster: Cluster, database: str, table: str, pages: Sequence[int] | NDArray[np.int64]) -> None:
    """Read pages of a table one after the other, in this order, each by the TID of its first row.

    Raises:
        ClusterError: it fails.
    """
    query = f"SELECT count(*) FROM unnest(%s::tid[]) AS a(tid) JOIN {table} AS t ON t.ctid = a.tid"
    try:
        with psycopg.connect(cluster.conninfo(database), autocommit=True) as connection:
            for name in ("seqscan", "hashjoin", "mergejoin", "material"):
                connection.execute(f"SET enable_{name} = off".encode())
            for first in range(0, len(pages), _BATCH_PAGES):
                tids = [f"({page},1)" for page in pages[first : first + _BATCH_PAGES]]
                connection.execute(query.encode(), [tids])
    except psycopg.Error as error:
        raise ClusterError("the pages could not be read", cause=first_line(error)) from error
