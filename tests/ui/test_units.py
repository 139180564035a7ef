"""Sizes, counts and percentages: each written in one way, here and in all that pgsweep prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgsweep.errors import UsageError
from pgsweep.units import (
    format_bytes,
    format_count,
    format_estimate,
    format_exact,
    format_hours,
    format_minutes,
    format_percent,
    format_plain,
    parse_bytes,
)

PACKAGE = Path(__file__).parents[2] / "python/pgsweep"
OTHER_WAYS = re.compile(
    r"(?<=[0-9}]) %(?!\})"  # a blank before the sign; not the end of a tag of Jinja2
    r"|:[+,]?\.[0-9]%\}"
    r"|:,(\.0f)?\}"
    r"|:\.[12]g\}|:\.[0-9]e\}"
)
HOUSE = "units.py"


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("8MB", 8 << 20), ("1.5 GB", 3 << 29), ("131072", 131072), ("64k", 65536)]
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "8 XB", "1e3kB"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (9.99, "10"),
        (12_345.4, "12 345"),
        (3e9, "3 000 000 000"),
        (6.7e-7, "below 0.001"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (12.3, 8.04, 15.0, "12 (8 to 15)"),
        (6.7e-7, 0.0, 3.2, "at most 3.2"),
        (0.01, 0.0, 0.04, "0"),
        (347.0, 347.2, 346.9, "347"),
        (12_345.0, 9_000.0, 20_000.0, "12 345 (9 000 to 20 000)"),
    ],
)
def test_what_is_predicted_stands_with_its_interval(value: float, low: float, high: float, text: str) -> None:
    assert format_estimate(value, low, high) == text


def test_nothing_expected_is_said_as_its_upper_bound() -> None:
    assert format_estimate(0.0, 0.0, 0.0075, lambda ratio: format_percent(ratio, 2)) == "at most 0.75%"


@pytest.mark.parametrize(
    ("seconds", "minutes", "hours"),
    [
        (0.4, "0 s", "0 s"),
        (12.3, "12 s", "12 s"),
        (180, "3 min", "3 min"),
        (3600, "60 min", "60 min"),
        (7200, "120 min", "2 h"),
        (3.6e6, "60 000 min", "1 000 h"),
    ],
)
def test_estimated_times(seconds: float, minutes: str, hours: str) -> None:
    assert (format_minutes(seconds), format_hours(seconds)) == (minutes, hours)


@pytest.mark.parametrize("value", [10.0**power for power in range(-12, 19)])
def test_no_number_has_an_exponent(value: float) -> None:
    formats = (format_count, format_plain, format_bytes, format_exact)
    for text in (*(shown(value) for shown in formats), format_percent(value, 1)):
        assert "e" not in text.replace("below", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-1.0, "-1"),
        (0.05, "0.05"),
        (-6.7e-7, "-0.00000067"),
        (2.0**53, "9007199254740992"),
        (1e24, "1e+24"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_exact_numbers(value: float, text: str) -> None:
    assert format_exact(value) == text


@pytest.mark.parametrize(
    ("ratio", "digits", "sign", "text"),
    [
        (0.23, 0, False, "23%"),
        (0.2345, 1, False, "23.4%"),
        (0.23, 0, True, "+23%"),
        (-0.5, 0, True, "-50%"),
        (-0.001, 0, False, "0%"),
        (2.5, 0, False, "250%"),
    ],
)
def test_percentages(ratio: float, digits: int, sign: bool, text: str) -> None:
    assert format_percent(ratio, digits, sign=sign) == text


@pytest.mark.parametrize("wrong", ["a 90 % interval", "{x:.0%}", "{x} %", "{x:,}", "{x:,.0f}", "{x:.2g}"])
def test_another_way_is_found(wrong: str) -> None:
    assert OTHER_WAYS.search(wrong)


def test_no_module_formats_in_another_way() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for kind in ("*.py", "*.toml", "*.psql", "*.j2")
        for path in sorted(PACKAGE.rglob(kind))
        if path.name != HOUSE
        for line in path.read_text(encoding="utf-8").splitlines()
        if OTHER_WAYS.search(line)
    ]
    assert not found, "use pgsweep.units"
