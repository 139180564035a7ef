"""Event by event: a trace replayed at the traced size hits and misses where the real server did."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pgsweep import _native
from pgsweep.evidence.schema import FLAG_PINNED
from pgsweep.evidence.store import Evidence
from pgsweep.evidence.trace import record_trace
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener

EXTEND = 2
SETTINGS = {
    "shared_buffers": "16MB",
    "max_connections": "20",
    "autovacuum": "off",
    "max_wal_size": "4GB",
}

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root"),
    pytest.mark.skipif(
        not Path("/sys/bus/event_source/devices/uprobe").exists(), reason="this kernel has no uprobes"
    ),
    pytest.mark.slow,
]


class Client(NullListener):
    """One client that goes to work as soon as the probes are live."""

    def __init__(self, cluster: Cluster, accesses: int) -> None:
        self._cluster = cluster
        self._accesses = accesses
        self._running: list[subprocess.Popen[bytes]] = []

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        if title == "recording page accesses":
            pgbench = f"{self._cluster.bindir}/pgbench -n -c 1 -M prepared '{self._cluster.conninfo()}'"
            writes, reads = self._accesses // 32, self._accesses // 8
            script = f"{pgbench} -t {writes} > /dev/null && {pgbench} -S -t {reads} > /dev/null"
            script = script.replace("'", '"')
            self._running.append(subprocess.Popen(["sh", "-c", script], stderr=subprocess.DEVNULL))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._running:
            process.terminate()
            process.wait()


def test_the_replay_of_many_accesses_hits_and_misses_as_the_server_did(
    server: Cluster, tmp_path: Path
) -> None:
    """Enough of them to turn the pool over ten times."""
    wanted = 125_000
    with Cluster.create(server.bindir, SETTINGS) as cluster:
        initialise = [str(cluster.bindir / "pgbench"), "-i", "-q", "-s", "10", cluster.conninfo()]
        subprocess.run(initialise, check=True, capture_output=True)
        cluster.restart()
        with Client(cluster, wanted) as client:
            record_trace(
                cluster.conninfo(),
                tmp_path / "x.evidence",
                seconds=240,
                max_events=wanted + 20_000,
                progress=client,
            )
    evidence = Evidence.open(tmp_path / "x.evidence")
    accesses, snapshots = evidence.table("accesses"), evidence.table("snapshots")
    count = len(accesses["kind"])
    assert count >= wanted
    assert evidence.meta.lost_events == 0

    # What the recorder's own session had read before the probes were live is where the replay starts.
    first = snapshots["snapshot"] == 0
    names = ("spc", "db", "rel", "fork", "block")
    both = [np.concatenate([accesses[name], snapshots[name][first]]) for name in names]
    pages, _ = _native.dense_ids(*both)
    contents = _native.PoolContents(
        pages[count:],
        snapshots["usage_count"][first],
        buffers=(snapshots["frame"][first] - 1).astype(np.uint32),
    )
    pinned = np.where((accesses["flags"] & FLAG_PINNED) > 0, _native.REPEAT, 0)
    extended = np.where(accesses["kind"] == EXTEND, _native.EXTENSION, 0)
    outcome = _native.replay_outcomes(
        pages[:count],
        evidence.meta.shared_buffers_blocks,
        _native.Rules(cluster.version_num // 10000),
        flags=(accesses["strategy"] | pinned | extended).astype(np.uint8),
        warm=contents,
    )
    assert not np.any(accesses["strategy"])
    different = int(np.count_nonzero(outcome["outcomes"] != accesses["kind"]))
    assert different <= count // 1000, f"{different} of {count} events"
