"""A short trace of a real pool, against the truth by restarts: `python -m benchmarks.large.real`, as root.

The pool is filled flat out and settles, then the load is paced, so that a clock pass takes minutes, and
traced for a part of one. Truth: the server is restarted at each size, and settles; misses are counted in two
stretches.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.samples import provenance
from pgsweep.pg.cluster import Cluster
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database, prepare
from pgsweep.testbed.truth import Patience, SettledWorkload
from pgsweep.testbed.workloads import MIX, ZIPF, Workload
from pgsweep.units import BLOCK_BYTES

HERE = Path(__file__).resolve().parent
PGSWEEP = Path(sys.executable).with_name("pgsweep")
SCALE = 80
POOL_BYTES = 256 << 20
FACTORS = (0.5, 0.75, 1.5, 2.0)
TRANSACTIONS_PER_SECOND = 400
TRACE_SECONDS = 30
PATIENCE = Patience(turnovers=4, settle_limit_seconds=600, count_windows=20, count_limit_seconds=25)


def traced(cluster: Cluster, workload: Workload, folder: Path) -> dict[str, Any]:
    """Return what `predict` says of a trace of the paced load."""
    evidence = folder / "short.evidence"
    with RunningWorkload(cluster, workload, seed=5, rate_per_second=TRANSACTIONS_PER_SECOND):
        time.sleep(5)
        options = ["--source", "trace", "--for", f"{TRACE_SECONDS}s", "-q", "-o", str(evidence)]
        subprocess.run(
            [PGSWEEP, "record", "-d", cluster.conninfo(DATABASE), *options],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    sizes = ",".join(f"{round(POOL_BYTES * factor) >> 20}MB" for factor in (1.0, *FACTORS))
    done = subprocess.run(
        [PGSWEEP, "predict", str(evidence), "--sizes", sizes, "--json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    codes = [reason["code"] for reason in found["verdict"]["reasons"]]
    return {"observed": found["observed"], "points": found["points"], "reasons": codes}


def real_case(workload: Workload) -> dict[str, Any]:
    """Return one load: predicted, and measured at each size."""
    truth: dict[str, Any] = {}
    with Cluster.create(None, {"max_wal_size": "4GB"}) as cluster, tempfile.TemporaryDirectory() as folder:
        create_database(cluster, SCALE)
        prepare(cluster, workload)
        for factor in (1.0, *FACTORS):
            size = round(POOL_BYTES * factor)
            with SettledWorkload(cluster, workload, size, seed=7, patience=PATIENCE) as settled:
                settled.settle()
                counted = [settled.count(), settled.count()]
            truth[str(size)] = [
                {"miss_ratio": round(one.miss_ratio, 5), "error": round(one.standard_error, 5)}
                | {"settled": one.settled, "settle_seconds": round(one.settle_seconds)}
                for one in counted
            ]
            print(size // BLOCK_BYTES, truth[str(size)], file=sys.stderr, flush=True)
            if factor == 1.0:
                predicted = traced(cluster, workload, Path(folder))
                print(json.dumps(predicted), file=sys.stderr, flush=True)
    return {"workload": workload.name, "truth": truth, "predicted": predicted}


if __name__ == "__main__":
    cases = [real_case(chosen) for chosen in (ZIPF, MIX)]
    (HERE / "real.json").write_text(json.dumps({**provenance(), "samples": cases}, indent=1) + "\n")
    print(json.dumps(cases))
