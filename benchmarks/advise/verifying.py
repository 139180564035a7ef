"""What `verify` says after real restarts at the size advised, and after the load was changed on purpose."""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.advise.cases import MEMORY_BYTES, OBSERVED_BYTES, Case, Samples, filled
from benchmarks.advise.measure import Watch, settle, start
from benchmarks.advise.workloads import WORKLOADS, Load
from pgsweep.evidence.record import record
from pgsweep.pg.cluster import Cluster
from pgsweep.sizing.verify import verify
from pgsweep.testbed.filling import PoolContent, pool_content
from pgsweep.testbed.pgbench import DATABASE
from pgsweep.testbed.workloads import Workload

SAME, CHANGED = "same", "changed"
_OTHER_BYTES = 3 * OBSERVED_BYTES
"""The size where the advice is to leave it: without a restart there is nothing to verify."""


def run_verify(case: Case, samples: Samples, options: Namespace) -> None:
    """Restart and verify so often, and once under another load; what is done is not done again."""
    before = case.folder(options.keep) / "trace.evidence"
    advice = samples.of(case.name, "advice", source="trace")
    done = samples.of(case.name, "verify")
    if not advice or len(done) > options.verify:
        return
    advised = advice[-1]["advised_bytes"]
    size = _OTHER_BYTES if advised == OBSERVED_BYTES else advised
    known = {line["number"] for line in done}
    loads = [(number, SAME, case.workload) for number in range(options.verify)]
    loads.append((options.verify, CHANGED, WORKLOADS["mix" if case.workload.name == "tpcb" else "tpcb"]))
    content = PoolContent()
    with filled(case) as cluster:
        for number, kind, workload in loads:
            if number in known:
                continue
            found, content = _verified(cluster, case, workload, size, content, number, before, options)
            samples.add("verify", case.name, number=number, load=kind, size_bytes=size, **found)
            outside = [one["name"] for one in found["values"] if not one["within"]]
            print(f"{case.name}: verify {number} ({kind}): {found['verdict']} {outside or ''}", flush=True)


def _verified(
    cluster: Cluster,
    case: Case,
    workload: Workload,
    size: int,
    content: PoolContent,
    number: int,
    before: Path,
    options: Namespace,
) -> tuple[dict[str, Any], PoolContent]:
    """Restart at the size, record when it has settled, verify; return that and what the pool held."""
    after = case.folder(options.keep) / "after.evidence"
    shutil.rmtree(after, ignore_errors=True)
    start(cluster, size, content, number)
    with Watch(cluster) as watch, Load(cluster, workload, case.scale, 200 + number):
        settled, _ = settle(watch, size, MEMORY_BYTES, options.settle)
        record(cluster.conninfo(DATABASE), after, source="trace", seconds=options.after)
        content = pool_content(cluster)
    result = verify(before, after)
    changed = [one.name for one in result.workload if one.changed]
    values = msgspec.to_builtins(result.values)
    return {
        "settled": settled,
        "verdict": result.verdict,
        "reasons": result.reasons,
        "changed": changed,
        "values": values,
    }, content
