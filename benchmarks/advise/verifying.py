"""What `verify` says after real restarts at the size advised, and after the load was changed on purpose."""

from __future__ import annotations

import shutil
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.advise.cases import MEMORY_BYTES, OBSERVED_BYTES, Case, Samples, filled
from benchmarks.advise.measure import Watch, settle, start
from benchmarks.advise.workloads import WORKLOADS, Load
from pgsweep.evidence.record import record
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.verify import verify
from pgsweep.testbed.filling import PoolContent, pool_content
from pgsweep.testbed.pgbench import DATABASE
from pgsweep.testbed.workloads import Workload

SAME, CHANGED = "same", "changed"
_OTHER_BYTES = 3 * OBSERVED_BYTES
"""The size where the advice is to leave it: without a restart there is nothing to verify."""


def run_verify(case: Case, samples: Samples, options: Namespace) -> None:
    """Restart and verify several times, and once under another load; what is done is not done again.

    Each time the server is recorded at the one size, restarted, and recorded at the other. So no two verdicts
    have a recording in common, and the tables of a load that inserts grow little between the two.
    """
    advice = samples.of(case.name, "advice", source="trace")
    done = samples.of(case.name, "verify")
    if not advice or len(done) > options.verify:
        return
    advised = advice[-1]["advised_bytes"]
    size = _OTHER_BYTES if advised == OBSERVED_BYTES else advised
    known = {line["number"] for line in done}
    loads = [(number, SAME, case.workload) for number in range(options.verify)]
    loads.append((options.verify, CHANGED, WORKLOADS["mix" if case.workload.name == "tpcb" else "tpcb"]))
    before, after = (case.folder(options.keep) / f"{name}.evidence" for name in ("before", "after"))
    with filled(case) as cluster:
        recorder = _Recorder(cluster, case, options)
        for number, kind, workload in loads:
            if number in known:
                continue
            recorder.record(before, case.workload, OBSERVED_BYTES, 200 + 2 * number, options.trace)
            settled = recorder.record(after, workload, size, 201 + 2 * number, options.after)
            result = verify(before, after)
            found = {
                "settled": settled,
                "verdict": result.verdict,
                "reasons": result.reasons,
                "changed": [one.name for one in result.workload if one.changed],
                "values": msgspec.to_builtins(result.values),
            }
            samples.add("verify", case.name, number=number, load=kind, size_bytes=size, **found)
            outside = [one.name for one in result.values if not one.within]
            print(f"{case.name}: verify {number} ({kind}): {result.verdict} {outside or ''}", flush=True)


@dataclass
class _Recorder:
    """Records a server at one size after the other."""

    cluster: Cluster
    case: Case
    options: Namespace
    content: PoolContent = field(default_factory=PoolContent)

    def record(self, path: Path, workload: Workload, size_bytes: int, seed: int, seconds: float) -> bool:
        """Restart at a size, trace when both caches have settled; return whether they had."""
        shutil.rmtree(path, ignore_errors=True)
        start(self.cluster, size_bytes, self.content, seed)
        with Watch(self.cluster) as watch, Load(self.cluster, workload, self.case.scale, seed):
            settled, _ = settle(watch, size_bytes, MEMORY_BYTES, self.options.settle)
            record(self.cluster.conninfo(DATABASE), path, source="trace", seconds=seconds)
            self.content = pool_content(self.cluster)
        return settled
