"""Records as HTML: the templates, and what they need of formatting."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Final
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup

from pgsweep.plain import sentence, shown
from pgsweep.records.cache import CacheMap
from pgsweep.records.serve import ServeCurve, ServeMemory, ServeMemoryPart
from pgsweep.records.top import TopRelation
from pgsweep.ui.forms import patch
from pgsweep.ui.kit.names import relation_name
from pgsweep.ui.kit.numbers import count, format_bytes, known_bytes, percent, seconds
from pgsweep.ui.views.advised import gain_text
from pgsweep.ui.views.cache_map import map_name
from pgsweep.units import as_setting, iso_time, seconds_of

_BAR_WIDTH: Final = 1000.0
_COLUMNS: Final = 64

_PART_NUMBERS: Final = {
    "shared_buffers": 0,
    "shared memory": 0,
    "other shared memory": 1,
    "private memory": 2,
    "page tables": 3,
    "page cache: relations": 4,
    "page cache": 4,
    "page cache: other files": 5,
    "everything else": 6,
    "free": 7,
}
"""The colours of the parts of memory in serve.css; where one is not known, those of the others stay."""


_OVERDUE_SECONDS: Final = 300.0
"""After this long the page says that what it shows should have been followed by something newer."""


def render(template: str, **values: object) -> str:
    """Return a page or a part of one."""
    return _environment().get_template(template).render(values)


@cache
def static_files() -> dict[str, bytes]:
    """Return what lies in static/, by its path there."""
    root = resources.files("pgsweep.serve.web").joinpath("static")
    found = {}
    for entry in root.iterdir():
        if entry.is_file():
            found[entry.name] = entry.read_bytes()
    for entry in root.joinpath("vendor").iterdir():
        found[f"vendor/{entry.name}"] = entry.read_bytes()
    return found


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pgsweep.serve.web", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": known_bytes,
        "percent": percent,
        "count": _count,
        "rate": lambda value: "–" if value is None else f"{count(value)}/s",
        "byte_rate": lambda value: "–" if value is None else f"{format_bytes(value)}/s",
        "seconds": lambda value: "–" if value is None else seconds(value),
        "ago": _ago,
        "overdue": lambda at: time.time() - at > _OVERDUE_SECONDS,
        "shown": shown,
        "gain": gain_text,
        "sentence": sentence,
        "alike": alike,
        "setting": as_setting,
        "statements": lambda result: patch(result, "alter-system", comments=False).splitlines(),
    }
    environment.globals |= {
        "relation_name": relation_name,
        "map_link": map_link,
        "row_id": row_id,
        "memory_bar": memory_bar,
        "part_number": part_number,
        "map_cells": map_cells,
        "map_name": map_name,
        "usage_bars": usage_bars,
        "spark": spark,
        "now": time.time,
        "base": "",
    }
    return environment


def _count(value: float | None) -> str:
    return "–" if value is None else count(value)


def _ago(at: float | str) -> Markup:
    """Return for how long something has been so; the page's script lets it go on while nothing new comes.

    Args:
        at: since when, as a record has it: seconds since 1970, or in ISO form.
    """
    since = seconds_of(at) if isinstance(at, str) else at
    age = max(0.0, time.time() - since)
    return Markup('<time datetime="{}" data-age="{:.3f}">{}</time>').format(
        iso_time(since) or "", age, seconds(age)
    )


def alike(curves: Iterable[ServeCurve]) -> list[tuple[str, ServeCurve]]:
    """Return each curve with its windows in words; one for windows with the same evidence."""
    found: list[list[ServeCurve]] = []
    for curve in curves:
        if found and _said(curve) == _said(found[-1][0]):
            found[-1].append(curve)
        else:
            found.append([curve])
    return [(", ".join(seconds(one.window_seconds) for one in group), group[0]) for group in found]


def _said(curve: ServeCurve) -> tuple[object, ...]:
    """Return what a page says of a curve besides its times."""
    return (curve.result, curve.why, curve.early, curve.failed, curve.waits_since is None)


def map_link(key: str, relation: TopRelation) -> str | None:
    """Return the address of a relation's block map; None where it has none."""
    if relation.kind not in ("table", "index", "TOAST table", "TOAST index", "materialized view"):
        return None
    names = {"database": relation.database, "schema": relation.schema, "relation": relation.relation}
    return f"/servers/{key}/map?{urlencode(names)}"


def row_id(relation: TopRelation) -> str:
    """Return an id by which the browser finds a row again when the table is made anew, to keep the focus."""
    name = "\0".join((relation.database, relation.schema, relation.relation))
    return f"r{zlib.crc32(name.encode(errors='backslashreplace')):08x}"


def part_number(part: ServeMemoryPart) -> int:
    """Return the number of a part's colour."""
    return _PART_NUMBERS[part.name]


def memory_bar(memory: ServeMemory) -> list[dict[str, object]]:
    """Return the parts of the bar: where each begins, how long it is, and how much of it is held twice."""
    total = max(1, sum(part.size_bytes for part in memory.parts))
    found: list[dict[str, object]] = []
    begin = 0.0
    for part in memory.parts:
        width = _BAR_WIDTH * part.size_bytes / total
        twice = _BAR_WIDTH * part.twice_bytes / total
        found.append({"part": part, "number": part_number(part), "x": begin, "width": width, "twice": twice})
        begin += width
    return found


def spark(values: list[float | None], *, ratio: bool = False) -> str:
    """Return a path of 60 by 16 through values, broken where one is unknown; empty for fewer than two.

    Args:
        values: from left to right.
        ratio: they go up to 1, and the path shows how far below they come; else they begin at 0.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    low, high = (min(known), 1.0) if ratio else (0.0, max(known))
    steps, last = [], None
    for number, value in enumerate(values):
        if value is not None:
            y = 15 - 14 * (value - low) / (high - low) if high > low else 1.0 if ratio else 15.0
            steps.append(f"{'M' if last is None else 'L'}{60 * number / len(values):.1f} {y:.1f}")
        last = value
    return " ".join(steps)


def usage_bars(usage_counts: list[int]) -> list[tuple[int, int, float]]:
    """Return usage count, buffers, and the length of the bar from 0 to 100."""
    most = max([1, *usage_counts])
    return [(number, buffers, 100 * buffers / most) for number, buffers in enumerate(usage_counts)]


def map_cells(block_map: CacheMap) -> list[dict[str, object]]:
    """Return the cells of a block map: place, the shares of each state, and the words for them."""
    cells: list[dict[str, object]] = []
    for number in range(len(block_map.both)):
        counts = {
            "both": block_map.both[number],
            "pool": block_map.pool_only[number],
            "cache": block_map.page_cache_only[number],
            "neither": block_map.neither[number],
        }
        kind = max(counts, key=lambda name: counts[name])
        cells.append({
            "x": number % _COLUMNS,
            "y": number // _COLUMNS,
            "kind": kind,
            "words": f"stretch {number + 1}: in both {count(counts['both'])}, "
            f"pool only {count(counts['pool'])}, page cache only {count(counts['cache'])}, neither "
            f"{count(counts['neither'])} blocks",
        })  # fmt: skip
    return cells
