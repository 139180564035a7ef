"""Every panel's data as JSON, and as CSV for spreadsheets; and the time range that a request asks for."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, get_args, get_type_hints

import msgspec
from starlette.responses import Response

from pgsweep.errors import UsageError
from pgsweep.plain import inert, shown
from pgsweep.records import serve
from pgsweep.records.serve import (
    ServeAdvice,
    ServeConsumer,
    ServeConsumers,
    ServeCurves,
    ServeDatabases,
    ServeMemory,
    ServeOverview,
    ServeSeries,
    ServeShares,
)
from pgsweep.records.top import TopSample
from pgsweep.serve.web.query import Query
from pgsweep.units import iso_time

RANGES: Final = {
    "15m": (900, "15 minutes"),
    "1h": (3600, "1 hour"),
    "6h": (6 * 3600, "6 hours"),
    "24h": (86_400, "24 hours"),
    "7d": (7 * 86_400, "7 days"),
    "30d": (30 * 86_400, "30 days"),
    "1y": (365 * 86_400, "1 year"),
}
"""Time ranges by name: seconds and words."""

DEFAULT_RANGE: Final = "1h"


def range_of(query: Query) -> tuple[float, float]:
    """Return begin and end in seconds since 1970: `begin` and `end`, or the last `range`.

    Raises:
        UsageError: they are not times.
    """
    now = time.time()
    if "begin" in query or "end" in query:
        begin, end = query.seconds("begin", now), query.seconds("end", now)
        if begin >= end:
            raise UsageError("begin and end are two times, the earlier first")
        return begin, end
    name = query.choice("range", (DEFAULT_RANGE, *RANGES))
    return now - RANGES[name][0], now


def as_json(record: Any) -> Response:
    """Return a record, with its times in ISO 8601."""
    return Response(msgspec.json.encode(_with_iso_times(record)), media_type="application/json")


def _with_iso_times(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_iso_times(one) for one in value] if value and _is_own(value[0]) else value
    if not _is_own(value):
        return value
    record: type[msgspec.Struct] = type(value)
    times = _times_of(record)
    return {
        name: _iso(held) if name in times else _with_iso_times(held)
        for name, held in msgspec.structs.asdict(value).items()
    }


def _is_own(value: Any) -> bool:
    """Return whether it is a record of serve; those of other commands have their times as text."""
    return type(value).__module__ == serve.__name__


@cache
def _times_of(record: type) -> frozenset[str]:
    hints = get_type_hints(record, include_extras=True)
    return frozenset(
        name for name, hint in hints.items() if hint == serve.Time or serve.Time in get_args(hint)
    )


def _iso(value: float | list[float] | None) -> str | list[str | None] | None:
    if isinstance(value, list):
        return [iso_time(at) for at in value]
    return None if value is None else iso_time(value)


def as_csv(name: str, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> Response:
    """Return a table; a text that a spreadsheet would take for a formula gets an apostrophe before it."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    for row in rows:
        writer.writerow([inert(cell) for cell in row])
    return Response(
        out.getvalue(),
        media_type="text/csv",
        headers={"content-disposition": f'attachment; filename="{name}.csv"'},
    )


def series_csv(key: str, series: ServeSeries) -> Response:
    """Return a part of the history."""
    rows = ([iso_time(at), *values] for at, *values in zip(series.at, *series.columns.values(), strict=True))
    return as_csv(f"{key}-series", ["at", *series.columns], rows)


def databases_csv(key: str, found: ServeDatabases) -> Response:
    """Return hits and reads of each database, a row an interval and database."""
    rows = [
        (iso_time(at), seconds, one.name, one.hits[number], one.reads[number])
        for number, (at, seconds) in enumerate(zip(found.at, found.seconds, strict=True))
        for one in found.databases
        if one.hits[number] is not None
    ]
    return as_csv(f"{key}-databases", ("at", "seconds", "database", "hits", "reads"), rows)


def shares_csv(key: str, found: ServeShares) -> Response:
    """Return what relations have in the pool, a row an interval and relation."""
    rows = [
        (iso_time(at), shown(one.database), shown(one.relation), one.pool_bytes[number])
        for number, at in enumerate(found.at)
        for one in found.relations
        if one.pool_bytes[number] is not None
    ]
    return as_csv(f"{key}-shares", ("at", "database", "relation", "pool_bytes"), rows)


def curves_csv(key: str, found: ServeCurves) -> Response:
    """Return the points of curves."""
    rows = [
        (iso_time(c.at), c.window_seconds, c.covered_seconds, c.result.verdict.level, p.shared_buffers_bytes,
         p.miss_ratio, p.low, p.high, c.advised_bytes)
        for c in (*found.now, *found.hours)
        if c.result is not None
        for p in c.result.points
    ]  # fmt: skip
    header = ("at", "window_seconds", "covered_seconds", "verdict", "shared_buffers_bytes", "miss_ratio",
              "low", "high", "advised_bytes")  # fmt: skip
    return as_csv(f"{key}-curves", header, rows)


def advice_csv(key: str, advice: ServeAdvice) -> Response:
    """Return the settings that each window advises."""
    rows = [
        (iso_time(one.at), one.window_seconds, one.covered_seconds, one.result.verdict.level, setting.name,
         setting.today, setting.action, setting.value, setting.kind, setting.reason,
         *((None,) * 4 if (gain := setting.gain) is None else (gain.of, gain.value, gain.low, gain.high)))
        for one in advice.windows
        for setting in one.result.settings
    ]  # fmt: skip
    header = ("at", "window_seconds", "covered_seconds", "verdict", "setting", "today", "action", "value",
              "kind", "reason", "gain_of", "gain", "gain_low", "gain_high")  # fmt: skip
    return as_csv(f"{key}-advice", header, rows)


def memory_csv(key: str, memory: ServeMemory | None) -> Response:
    """Return the parts of the host's memory."""
    rows = [] if memory is None else [(p.name, p.size_bytes, p.twice_bytes) for p in memory.parts]
    return as_csv(f"{key}-memory", ("part", "size_bytes", "twice_bytes"), rows)


def consumers_csv(key: str, found: ServeConsumers) -> Response:
    """Return who used a server, a row each."""
    names = ServeConsumer.__struct_fields__
    rows = (
        [shown(v) if isinstance(v, str) else v for v in (getattr(each, name) for name in names)]
        for each in found.consumers
    )
    return as_csv(f"{key}-consumers", names, rows)


def relations_csv(key: str, sample: TopSample | None) -> Response:
    """Return relations with what they have in the caches."""
    names = ("database", "schema", "relation", "kind", "shared_buffers_bytes", "page_cache_bytes",
             "both_bytes", "size_bytes", "dirty_bytes", "change_bytes_per_second")  # fmt: skip
    rows = (
        [shown(v) if isinstance(v, str) else v for v in (getattr(relation, name) for name in names)]
        for relation in ([] if sample is None else sample.relations)
    )
    return as_csv(f"{key}-relations", names, rows)


def overview_csv(_key: str, overview: ServeOverview) -> Response:
    """Return the line of each server."""
    names = ("name", "place", "state", "server_version", "shared_buffers_bytes", "hit_ratio",
             "reads_per_second", "disk_read_bytes_per_second", "avoidable_reads_per_second",
             "advised_bytes", "waiting_saved_ratio", "advice", "verdict", "reclaim_bytes",
             "pays_bytes")  # fmt: skip
    return as_csv("servers", names, ([getattr(s, name) for name in names] for s in overview.servers))
