"""Whether a result that was read from a file can be shown: types are right by then, values need not be.

A result that pgsweep made always passes. One that does not was changed or made by another program, and would
give a chart of infinite size or an axis without length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from pgsweep.records.cache import CacheResult
from pgsweep.records.footprint import FootprintResult
from pgsweep.records.load import LoadCompareResult
from pgsweep.units import format_exact

_MOST: Final = 2.0**64
_MOST_BYTES: Final = 2.0**53

_RATIO: Final = (0.0, 1.0)
_SIZE: Final = (1024.0, _MOST_BYTES)

_RANGES: Final[dict[tuple[str, str], tuple[float, float]]] = {
    **{
        (name, field): _RATIO
        for name in ("CurvePoint", "Interval")
        for field in ("miss_ratio", "low", "high")
    },
    **{("CurvePoint", field): _RATIO for field in ("stretch_low", "stretch_high")},
    **{
        (name, "shared_buffers_bytes"): _SIZE
        for name in (
            "CurvePoint",
            "DemoRow",
            "DiskPoint",
            "ProveRow",
            "ReadsPoint",
            "RelationReads",
            "ThroughputPoint",
        )
    },
    **{(name, "measured_miss_ratio"): _RATIO for name in ("DemoRow", "ProveRow")},
    ("Observed", "shared_buffers_bytes"): (0.0, _MOST_BYTES),
    ("Observed", "miss_ratio"): _RATIO,
    ("DemoWorkload", "observed_shared_buffers_bytes"): _SIZE,
    **{
        (name, "usage_counts"): (0.0, _MOST_BYTES)
        for name in ("CacheRelation", "PoolState", "WarmSaveResult")
    },
    **{
        ("CacheMap", field): (0.0, _MOST_BYTES)
        for field in ("pool_only", "page_cache_only", "both", "neither")
    },
    ("ProveResult", "observed_shared_buffers_bytes"): _SIZE,
}
"""What lies on an axis, by record and field."""

_MOST_LENGTHS: Final = {"usage_counts": 16, "points": 2000}
"""What is drawn, by field: a pool counts usage with four bits, and a prediction has at most 1000 sizes."""


def trouble_in(record: msgspec.Struct) -> str | None:
    """Return which value of a result is impossible, or nothing."""
    for name, count in _lengths(record):
        if count > _MOST_LENGTHS.get(name, count):
            return f"{name} has {count} entries"
    for holder, name, value in _numbers(record):
        low, high = _RANGES.get((holder, name), (-_MOST, _MOST))
        if not (math.isfinite(value) and low <= value <= high):
            return f"{name} is {format_exact(value)}"
    if isinstance(record, FootprintResult):
        for relation in record.relations:
            if len(relation.runs) != len(record.runs):
                return f"{relation.relation} has {len(relation.runs)} runs of {len(record.runs)}"
    if isinstance(record, LoadCompareResult) and not all(practice.seconds for practice in record.practices):
        return "a practice has no times"
    if isinstance(record, CacheResult) and record.map is not None:
        cells = record.map
        lengths = {len(part) for part in (cells.pool_only, cells.page_cache_only, cells.both, cells.neither)}
        if len(lengths) > 1:
            return "the parts of the map have different lengths"
    return None


def _lengths(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield the length of every list, with the field that it stands in."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _lengths(getattr(value, field), field)
    elif isinstance(value, dict | list | tuple):
        yield name, len(value)
        for inner in value.values() if isinstance(value, dict) else value:
            if not isinstance(inner, str | int | float):
                yield from _lengths(inner, name)


def _numbers(value: Any, holder: str = "", name: str = "") -> Iterator[tuple[str, str, float]]:
    """Yield every number, with the record and the field that it stands in."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _numbers(getattr(value, field), type(value).__name__, field)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _numbers(inner, holder, name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _numbers(inner, holder, name)
    elif isinstance(value, int | float):
        try:
            yield holder, name, float(value)
        except OverflowError:
            yield holder, name, math.inf
