"""What reads cost the sessions: seconds of waiting in each second, and what each added gigabyte saves.

    waiting = disk reads * L + copies * c

with L the time of one read from disk, c that of one copy from the page cache, and as copies the misses that
are no disk reads. A gigabyte that is added to shared_buffers saves the difference between a size and the next
larger one, divided by what lies between them. Its interval sets both ends against each other, as if their
errors were independent, so it is rather too wide.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Final

import msgspec

from pgsweep.records.prediction import (
    CurvePoint,
    DiskPoint,
    MemoryPrediction,
    Observed,
    ReadCosts,
    Throughput,
)

_GB: Final = 1 << 30

ASSUMED_COSTS: Final = ReadCosts(
    disk_read_seconds=100e-6, disk_read_kind="assumed", copy_seconds=2e-6, copy_kind="assumed"
)
"""One random read of a solid-state disk; slower disks favour fewer disk reads even more. One read of 8 kB
from the page cache: a system call and a copy."""

Bounded = tuple[float, float, float]
"""A value, the least that it may be, and the most."""


def read_costs(copy_seconds: float | None, loop: Throughput | None = None) -> ReadCosts:
    """Return what reads take, measured where it was.

    Args:
        copy_seconds: of a read from the page cache; None where it was not measured.
        loop: the throughput predicted from it; None where there is none.
    """
    costs = ASSUMED_COSTS
    if copy_seconds is not None:
        costs = msgspec.structs.replace(costs, copy_seconds=max(copy_seconds, 1e-9), copy_kind="measured")
    if loop is not None and loop.disk_read_seconds is not None and loop.copy_seconds is not None:
        costs = ReadCosts(
            disk_read_seconds=loop.disk_read_seconds,
            disk_read_kind="measured",
            copy_seconds=loop.copy_seconds,
            copy_kind="measured",
        )
    return costs


def waiting(disk_reads: Bounded, misses: Bounded, costs: ReadCosts) -> Bounded:
    """Return the seconds that all sessions together wait for reads in one second.

    Args:
        disk_reads: per second.
        misses: per second, disk reads among them.
        costs: of each.
    """

    def seconds(reads: float, missed: float) -> float:
        return reads * costs.disk_read_seconds + max(0.0, missed - reads) * costs.copy_seconds

    value = seconds(disk_reads[0], misses[0])
    ends = [seconds(reads, missed) for reads, missed in product(disk_reads[1:], misses[1:])]
    return value, min(value, *ends), max(value, *ends)


def with_savings(
    memory: MemoryPrediction, curve: list[CurvePoint], observed: Observed, costs: ReadCosts
) -> MemoryPrediction:
    """Return the prediction with what sessions wait at each size, and what each added gigabyte saves.

    Args:
        memory: the disk reads.
        curve: the miss ratios, at these sizes at least.
        observed: whose accesses they are of.
        costs: of reads.
    """
    per_second = observed.accesses_per_second
    misses = {point.shared_buffers_bytes: point for point in curve}
    points: list[tuple[DiskPoint, Bounded]] = []
    for point in sorted(memory.points, key=lambda one: one.shared_buffers_bytes):
        missed = misses[point.shared_buffers_bytes]
        wait = waiting(
            (point.disk_reads_per_second, point.disk_reads_low, point.disk_reads_high),
            (missed.miss_ratio * per_second, missed.low * per_second, missed.high * per_second),
            costs,
        )
        value, low, high = wait
        points.append((msgspec.structs.replace(point, wait_ratio=value, wait_low=low, wait_high=high), wait))
    saved = [_with_saved(*small, *large) for small, large in pairwise(points)]
    last = [point for point, _ in points[-1:]]
    return msgspec.structs.replace(memory, points=[*saved, *last], costs=costs)


def _with_saved(small: DiskPoint, wait: Bounded, large: DiskPoint, later: Bounded) -> DiskPoint:
    """Return the smaller size with what each gigabyte up to the larger one saves."""
    added = (large.shared_buffers_bytes - small.shared_buffers_bytes) / _GB
    return msgspec.structs.replace(
        small,
        saved_seconds_per_gb=(wait[0] - later[0]) / added,
        saved_seconds_per_gb_low=(wait[1] - later[2]) / added,
        saved_seconds_per_gb_high=(wait[2] - later[1]) / added,
    )
