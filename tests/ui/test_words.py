"""What is said is true and short: every sentence of the committed answers beside the numbers it speaks of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pgsweep.records import reasons, trace_reasons
from pgsweep.records.prediction import DiskPoint
from pgsweep.sizing.page_cache.disk_reads import Check
from pgsweep.units import parse_bytes
from tools.same_answers import kept, names

LONGEST = 260
"""Characters of a sentence: three lines of a terminal."""

_JSON = re.compile(r"^(\{$.*?^\}$)", re.MULTILINE | re.DOTALL)
_APART = re.compile(
    r"at (?P<size>[\d.]+ \w+) of shared_buffers (?P<simulated>\d+)% of the misses come from disk in the "
    r"simulation, (?P<closed>\d+)% by the closed form; the intervals include that difference"
)
_SAMPLED = re.compile(r"the intervals include the sampling error, up to ±(?P<error>[\d.]+)%")


def results(schema: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each result of a kind in the committed answers, and the name of its file."""
    for name in names():
        for text in _JSON.findall(kept(name)):
            found = json.loads(text)
            if found.get("schema") == schema:
                yield name, found


def sentences(found: object) -> Iterator[str]:
    """Return all reasons in a result."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key == "reasons":
                yield from (one if isinstance(one, str) else one["text"] for one in value)
            else:
                yield from sentences(value)
    elif isinstance(found, list):
        for one in found:
            yield from sentences(one)


def memories(found: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return what each prediction in a result says of the page cache, with its curve."""
    for one in (found, found.get("changed") or {}):
        if one.get("memory"):
            yield one["memory"], one["points"]


def test_an_interval_that_includes_a_difference_does() -> None:
    """239 kB/s were measured, the interval ended at 116, and it was said to include that."""
    checked = 0
    for name, found in results("pgsweep.predict/1"):
        today = found["observed"]["shared_buffers_bytes"]
        for memory, _ in memories(found):
            here = [point for point in memory["points"] if point["shared_buffers_bytes"] == today]
            for said in memory["reasons"]:
                inside = "; the interval includes that difference" in said
                if not inside and "does not include that difference" not in said:
                    continue
                [point] = here
                value, low, high = (
                    (
                        memory["measured_twice_bytes"],
                        point["held_twice_low_bytes"],
                        point["held_twice_high_bytes"],
                    )
                    if "in the page cache too" in said
                    else (
                        memory["measured_disk_bytes_per_second"],
                        point["disk_bytes_low"],
                        point["disk_bytes_high"],
                    )
                )
                assert (low <= value <= high) == inside, (name, said, low, high)
                checked += 1
    assert checked > 20


def test_an_interval_that_does_not_include_it_is_not_said_to() -> None:
    point = next(
        memory["points"][0] for _, found in results("pgsweep.predict/1") for memory, _ in memories(found)
    )
    today = msgspec.structs.replace(
        msgspec.convert(point, DiskPoint),
        disk_bytes_low=0.0,
        disk_bytes_high=116e3,
        held_twice_high_bytes=8192,
    )
    far = Check("239 kB/s are read", 239e3, "disk_bytes", "/s").sentence(today)
    assert far == "239 kB/s are read; the interval, 0 B to 113 kB/s, does not include that difference"
    assert Check("so", 8193.0, "held_twice").sentence(today).endswith("does not include that difference")
    assert Check("so", 9e4).sentence(today) == "so; the interval includes that difference"
    assert Check("so", 239e3).sentence(None) == Check("so").sentence(today) == "so", "nothing is claimed"


def test_an_interval_that_includes_two_methods_does() -> None:
    checked = 0
    for name, found in results("pgsweep.predict/1"):
        for memory, _ in memories(found):
            for said in memory["reasons"]:
                if match := _APART.fullmatch(said):
                    size = parse_bytes(match["size"].replace(" ", ""))
                    point = min(memory["points"], key=lambda one: abs(one["shared_buffers_bytes"] - size))
                    width = point["page_cache_hit_high"] - point["page_cache_hit_low"]
                    # Shares are said without digits.
                    assert width >= abs(int(match["closed"]) - int(match["simulated"])) / 100 - 0.01, (
                        name,
                        said,
                    )
                    checked += 1
    assert checked > 3


def test_an_interval_that_includes_the_sampling_does() -> None:
    for name, found in results("pgsweep.predict/1"):
        for said in found["verdict"]["reasons"]:
            if (match := _SAMPLED.search(said["text"])) and found["points"]:
                widest = max(point["high"] - point["low"] for point in found["points"]) / 2
                assert widest >= float(match["error"]) / 100 - 1e-4, (name, said)


def test_the_decision_is_that_on_shared_buffers() -> None:
    """It was `change` where shared_buffers was left, and the headline a setting that gains nothing."""
    kinds = set()
    for name, found in results("pgsweep.advise/1"):
        size = found["settings"][0]
        assert size["name"] == "shared_buffers"
        assert (
            found["decision"] == {"set": "change", "leave": "leave", "unknown": "unknown"}[size["action"]]
        ), name
        kinds.add(found["decision"])
        head = found["summary"].split(". What shared_buffers", 1)[0]
        for one in found["settings"]:
            idle = one["gain"] is None and one["takes_effect"] != "restart" and one["where"] == "server"
            if idle and one["action"] == "set":
                assert f"{one['name']} = " not in head, (name, found["summary"])
    assert kinds == {"change", "leave", "unknown"}


def test_sentences_are_short() -> None:
    long = {
        said
        for schema in ("pgsweep.predict/1", "pgsweep.advise/1", "pgsweep.verify/1")
        for _, found in results(schema)
        for said in sentences(found)
        if len(said) > LONGEST
    }
    assert not long


@pytest.mark.parametrize("seconds", [None, 5.0, 1e12])
def test_nobody_is_told_to_record_for_years(seconds: float | None) -> None:
    said = reasons.short_recording(0.01, 12, seconds).text
    assert said.endswith("record for 5 s" if seconds == 5.0 else "record for much longer")


def test_the_start_that_decides_is_said_with_what_to_do() -> None:
    said = trace_reasons.start_decides(0.0483, 0.1038, 120).text
    assert said == (
        "the trace is too short: how the replay starts decides the result (4.83% or 10.38% at today's size); "
        "record for 2 min"
    )
