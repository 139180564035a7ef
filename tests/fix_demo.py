"""Small plans of the demo, and its workloads at a pace that leaves processors to others."""

from __future__ import annotations

from dataclasses import replace

from pgsweep.sizing.demo import DemoPlan
from pgsweep.testbed.truth import Patience
from pgsweep.testbed.workloads import MIX, Workload

MIB = 1024**2


def paced(workload: Workload, pause_microseconds: int) -> Workload:
    """Return a workload whose clients wait before each transaction.

    At full speed pgbench and its servers take two processors for as long as the test lasts.
    """
    scripts = tuple(
        replace(script, text=f"\\sleep {pause_microseconds} us\n{script.text}") for script in workload.scripts
    )
    return replace(workload, scripts=scripts)


SMALL = DemoPlan(
    workloads=(paced(MIX, 2000),),
    scale=3,
    observed_bytes=4 * MIB,
    sizes_bytes=(2 * MIB, 4 * MIB, 16 * MIB),
    snapshots_seconds=8,
    trace_seconds=4,
    patience=Patience(settle_windows=4, settle_limit_seconds=6, count_windows=3, count_limit_seconds=4),
)

BRIEF = replace(
    SMALL,
    scale=1,
    snapshots_seconds=1.5,
    trace_seconds=1,
    patience=Patience(settle_limit_seconds=1, count_windows=1, count_limit_seconds=1),
)
