"""The first queries of a standby, cold, and warmed from its primary's heat, while it replays."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from pgsweep.pg.private.cluster import Cluster
from pgsweep.residency.access import opened
from pgsweep.testbed.cold import empty_caches
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database
from pgsweep.testbed.workloads import ZIPF
from pgsweep.warm.heat.file import read_heat
from pgsweep.warm.heat.restore import restore
from pgsweep.warm.heat.restore_plan import RestoreOptions
from pgsweep.warm.heat.save import save
from tests.fix_standby import PRIMARY, standby_of

SCALE = 20
ROUNDS = 3
FIRST_SECONDS = 4.0
SETTINGS = {**PRIMARY, "shared_buffers": "128MB", "autovacuum": "off", "max_wal_size": "4GB"}


def measure_standby() -> dict[str, Any]:
    """Return the transactions of the first seconds, cold and warmed, by round."""
    with Cluster.create(settings=SETTINGS) as primary:
        create_database(primary, SCALE)
        with standby_of(primary) as standby:
            standby.settings["shared_buffers"] = SETTINGS["shared_buffers"]
            return _measured(primary, standby)


def _measured(primary: Cluster, standby: Cluster) -> dict[str, Any]:
    samples: dict[str, list[float]] = {"cold": [], "warmed": [], "resident": [], "restore_seconds": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "primary.heat"
        with RunningWorkload(primary, ZIPF, seed=1, scale=SCALE):
            time.sleep(15)
        with opened(primary.conninfo(DATABASE)) as access:
            save(access, path)
        stop = threading.Event()
        writer = threading.Thread(target=_write, args=(primary, stop))
        writer.start()
        try:
            for turn in range(ROUNDS):
                for arm in ("cold", "warmed") if turn % 2 == 0 else ("warmed", "cold"):
                    empty_caches(standby)
                    if arm == "warmed":
                        conninfo = standby.conninfo(DATABASE)
                        result = restore(
                            conninfo, path, read_heat(path), RestoreOptions(), stop=threading.Event()
                        )
                        assert result.after is not None
                        samples["resident"].append(result.after.resident)
                        samples["restore_seconds"].append(result.seconds)
                    samples[arm].append(_first_transactions(standby, seed=turn))
                    print(f"standby {arm}: {samples[arm][-1]:.0f} transactions", flush=True)
        finally:
            stop.set()
            writer.join()
    speedup = statistics.median(samples["warmed"]) / statistics.median(samples["cold"])
    return {"first_seconds": FIRST_SECONDS, **samples, "speedup": round(speedup, 2)}


def _first_transactions(standby: Cluster, seed: int) -> float:
    """Return how many transactions the workload's first seconds bring."""
    with RunningWorkload(standby, ZIPF, seed=seed, scale=SCALE, timed=True) as workload:
        time.sleep(FIRST_SECONDS + 0.5)
        workload.check()
        return sum(tps for at, tps in workload.seconds() if at <= FIRST_SECONDS + 0.1)


def _write(primary: Cluster, stop: threading.Event) -> None:
    """Keep the standby replaying."""
    with psycopg.connect(primary.conninfo(DATABASE), autocommit=True) as connection:
        number = 0
        while not stop.wait(0.01):
            number += 7919
            connection.execute(
                "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = %s",
                [1 + number % (SCALE * 100_000)],
            )
