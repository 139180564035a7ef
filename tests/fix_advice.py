"""What is known when settings are decided, built by hand, with round numbers."""

from __future__ import annotations

from typing import Any

import msgspec

from pgsweep.advice.decide import decide
from pgsweep.advice.reads import reads_by_size
from pgsweep.advice.shared_buffers import decide_size
from pgsweep.advice.situation import Contents, Costs, Situation
from pgsweep.records.advice import AdviceResult
from pgsweep.records.prediction import (
    CurvePoint,
    DiskPoint,
    MemoryPrediction,
    Observed,
    PredictResult,
    Verdict,
)
from pgsweep.sizing.memory_shares import MemoryFacts

MB = 1 << 20
GB = 1 << 30
SETTINGS = {
    "effective_cache_size": "524288",
    "huge_pages": "try",
    "max_connections": "100",
    "shared_preload_libraries": "",
}


def facts(memory_bytes: int = 16 * GB) -> MemoryFacts:
    return MemoryFacts(
        memory_bytes=memory_bytes,
        from_cgroup=False,
        other_bytes=GB,
        shared_bytes=GB,
        other_files_bytes=0,
        page_tables_bytes=0,
        processes=10,
        huge_pages=False,
        mglru=False,
        readahead_bytes=131072,
        folio_order=0,
    )


def situation(
    misses: dict[int, float],
    disk: dict[int, float] | None = None,
    *,
    width: float = 0.05,
    per_second: float = 100_000.0,
    **changed: Any,
) -> Situation:
    """Return a situation with 1 GB of shared_buffers.

    Args:
        misses: miss ratio by size.
        disk: disk reads per second by size, as from a trace; None for snapshots.
        width: of the intervals, to either side.
        per_second: page accesses.
        changed: other fields.
    """
    memory = None
    if disk is not None:
        points = [_disk_point(size, reads, width) for size, reads in disk.items()]
        memory = MemoryPrediction(
            memory_bytes=16 * GB,
            memory_from="host",
            other_bytes=GB,
            measured_disk_bytes_per_second=None,
            policy="two-lists",
            points=points,
            reasons=["what the server read from disk was not measured"],
        )
    prediction = PredictResult(
        source="peek" if disk is None else "trace",
        observed=Observed(
            shared_buffers_bytes=GB, miss_ratio=misses[GB], accesses=round(per_second * 60), seconds=60.0
        ),
        points=[
            CurvePoint(
                shared_buffers_bytes=size,
                miss_ratio=ratio,
                low=ratio * (1 - width),
                high=ratio * (1 + width),
            )
            for size, ratio in sorted(misses.items())
        ],
        verdict=Verdict(level="reliable", reasons=[]),
        memory=memory,
    )
    given: dict[str, Any] = {
        "prediction": prediction,
        "candidates": sorted(misses if disk is None else disk),
        "settings": SETTINGS,
        "facts": facts(),
        "memory_bytes": 16 * GB,
        "memory_assumed": False,
        "data_bytes": 100 * GB,
        "contents": Contents(
            relations=[("public.orders", 700 * MB), ("public.items", 200 * MB)],
            bytes_by_usage_count=[100 * MB, 200 * MB, 0, 0, 200 * MB, 500 * MB],
        ),
        "costs": Costs(),
    }
    return Situation(**{**given, **changed})


def _disk_point(size: int, reads: float, width: float) -> DiskPoint:
    return DiskPoint(
        shared_buffers_bytes=size,
        page_cache_bytes=15 * GB - size,
        page_cache_low_bytes=15 * GB - size,
        page_tables_bytes=0,
        page_cache_hit_ratio=0.5,
        page_cache_hit_low=0.5,
        page_cache_hit_high=0.5,
        disk_reads_per_second=reads,
        disk_reads_low=reads * (1 - width),
        disk_reads_high=reads * (1 + width),
        disk_bytes_per_second=reads * 8192,
        disk_bytes_low=reads * 8192,
        disk_bytes_high=reads * 8192,
        held_twice_bytes=0,
        held_twice_low_bytes=0,
        held_twice_high_bytes=0,
    )


def advised(known: Situation) -> AdviceResult:
    """Return the advice, as `gather` puts it together."""
    points, basis = reads_by_size(known)
    decision = decide_size(known, points, basis)
    return decide(
        known,
        decision,
        points,
        basis,
        server_version="18.0",
        database="shop",
        evidence="shop.evidence",
        missing=[],
    )


def growing() -> Situation:
    """Return a situation in which 4 GB save two thirds of the disk reads."""
    misses = {512 * MB: 0.3, GB: 0.2, 4 * GB: 0.05, int(6.4 * GB) // MB * MB: 0.045}
    disk = {512 * MB: 9_500.0, GB: 9_000.0, 4 * GB: 3_000.0, int(6.4 * GB) // MB * MB: 2_950.0}
    return situation(misses, disk)


def advice_result() -> AdviceResult:
    return msgspec.structs.replace(advised(growing()))
