"""What is known when settings are decided, built by hand, with round numbers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec

from pgsweep.advice.decide import decide
from pgsweep.advice.reads import reads_by_size
from pgsweep.advice.shared_buffers import decide_size
from pgsweep.advice.situation import Contents, Situation
from pgsweep.advice.summary import summarized
from pgsweep.records.advice import AdviceResult
from pgsweep.records.hugepages import HugePagePool, HugePagesMethods, HugePagesResult, PageTables
from pgsweep.records.prediction import (
    CurvePoint,
    DiskPoint,
    MemoryPrediction,
    Observed,
    PredictResult,
    Verdict,
)
from pgsweep.records.reasons import evidence
from pgsweep.records.serve import ServeAdvised
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.sizing.throughput.read_costs import ASSUMED_COSTS

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
        pages_out_idle=False,
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
            reasons=["the server's disk reads were not measured"],
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
        "costs": ASSUMED_COSTS,
    }
    return Situation(**{**given, **changed})


def _disk_point(size: int, reads: float, width: float, blocks: float | None = None) -> DiskPoint:
    blocks = reads if blocks is None else blocks
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
        disk_bytes_per_second=blocks * 8192,
        disk_bytes_low=blocks * (1 - width) * 8192,
        disk_bytes_high=blocks * (1 + width) * 8192,
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
    misses = {512 * MB: 0.3, 700 * MB: 0.25, GB: 0.2, 4 * GB: 0.05, 6528 * MB: 0.045}
    disk = {512 * MB: 9_500.0, 700 * MB: 9_300.0, GB: 9_000.0, 4 * GB: 3_000.0, 6528 * MB: 2_950.0}
    return situation(misses, disk)


def refusing(**changed: Any) -> Situation:
    """Return a situation whose prediction is refused, so without a curve; other settings are well."""
    settings = {**SETTINGS, "effective_cache_size": str(12 * GB // 8192)}
    known = situation({GB: 0.2}, **{"settings": settings, **changed})
    verdict = Verdict(
        level="refused",
        reasons=[evidence("the load moves"), evidence("it is short"), evidence("a third reason")],
    )
    prediction = msgspec.structs.replace(known.prediction, verdict=verdict, points=[])
    return replace(known, prediction=prediction)


def advice_result() -> AdviceResult:
    return msgspec.structs.replace(advised(growing()))


def pages(*, saved: int, status: str = "off", limit: int | None = None) -> HugePagesResult:
    """Return what is known of huge pages where a server needs 2200, and its page tables take so much."""
    pool = HugePagePool(
        page_size_bytes=2 * MB,
        is_default=True,
        total=0,
        free=0,
        reserved=0,
        surplus=0,
        overcommit=0,
        available=0,
        needed=2200,
    )
    return HugePagesResult(
        server_version="18.0",
        huge_pages="try",
        settings={},
        status=status,
        shared_buffers_bytes=4 * GB,
        shared_memory_bytes=4400 * MB,
        huge_pages_needed=2200,
        huge_page_size_bytes=2 * MB,
        available=0,
        target=2200,
        reasons=[],
        methods=HugePagesMethods(exact=2200, server=None, vmpeak=None),
        page_tables=PageTables(
            processes=100,
            now_bytes=saved + MB,
            with_huge_pages_bytes=MB,
            without_huge_pages_bytes=saved + MB,
            connections=100,
            connections_ordinary_bytes=2 * saved,
            connections_huge_bytes=MB,
        ),
        pools=[pool],
        transparent={},
        steps=[],
        huge_limit_bytes=limit,
        allowed_pages=None if limit is None else limit // (2 * MB),
        binding_limit=None if limit is None else "/pod/hugetlb.2MB.max",
        binding_limit_bytes=limit,
    )


def leaving() -> AdviceResult:
    return advised(situation({512 * MB: 0.21, GB: 0.2, 4 * GB: 0.199}, width=0.2))


def one(result: AdviceResult, window: int, covered: float, size: int | None) -> ServeAdvised:
    return ServeAdvised(
        window_seconds=window, covered_seconds=covered, at=time.time() - 60, size_bytes=size, result=result
    )


def planner(value: str | None, *, today: str = "4GB") -> ServeAdvised:
    """Advice to set effective_cache_size; to leave it without a value."""
    found = one(leaving(), 900, 600.0, GB)
    action: Any = "leave" if value is None else "set"
    settings = [
        msgspec.structs.replace(
            each, action=action, today=today, value=value, takes_effect="" if value is None else "reload"
        )
        if each.name == "effective_cache_size"
        else each
        for each in found.result.settings
    ]
    summary, decision = summarized(settings)
    result = msgspec.structs.replace(found.result, settings=settings, summary=summary, decision=decision)
    return msgspec.structs.replace(found, result=result)
