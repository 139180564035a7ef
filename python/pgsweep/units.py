"""Sizes as people write them: PostgreSQL's units (kB, MB, GB, TB: powers of 1024) in, bytes out, and back."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Decimal

from pgsweep.errors import UsageError

BLOCK_BYTES = 8192
Z90 = 1.645
"""Standard errors on either side of an estimate that hold 90%."""

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_FACTORS = {"": 1, "b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}


def parse_bytes(text: str) -> int:
    """Return the bytes meant by text such as `8MB`, `1.5 GB` or `131072` (bytes).

    Raises:
        UsageError: the text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", text, re.IGNORECASE)
    unit = match.group(2).lower().replace("i", "") if match else "?"
    if unit in {"k", "m", "g", "t"}:
        unit += "b"
    if match is None or unit not in _FACTORS:
        raise UsageError(
            f"`{text}` is not a size", hint="write a number with a unit: 128kB, 64MB, 8GB (powers of 1024)"
        )
    return round(float(match.group(1)) * _FACTORS[unit])


def parse_seconds(text: str) -> float:
    """Return the seconds meant by a time in PostgreSQL's units: `40s`, `2min` (or `2m`), `1h`, `50ms`, `40`.

    Raises:
        UsageError: the text is not a time, or it is zero.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|)\s*", text)
    if match is None or float(match.group(1)) == 0:
        raise UsageError(f"`{text}` is not a time", hint="write it as 50ms, 40s, 2min or 1h")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def bytes_of(text: str, block_bytes: int) -> int:
    """Return the bytes of a setting of shared_buffers: a number without a unit is blocks.

    Raises:
        UsageError: it is not a size.
    """
    return int(text) * block_bytes if text.isdigit() else parse_bytes(text)


def format_bytes(size_bytes: float) -> str:
    """Return the size in PostgreSQL's units, three significant digits: `64 MB`, `1.5 GB`."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1023.5:
            return f"{_three_digits(value)} {unit}"
        value /= 1024
    return f"{_three_digits(value)} TB"


def _three_digits(value: float) -> str:
    """Return three digits of a size; from 999.5 on and below 0.0001 they would have an exponent."""
    if abs(value) < 0.0001:
        return "0"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def as_setting(size_bytes: int) -> str:
    """Return a size as postgresql.conf has it, in whole units: `12GB`, `1536MB`, `128kB`."""
    for unit, factor in (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes // 1024}kB"


SETTING_UNITS = {"shared_buffers": "8kB", "effective_cache_size": "8kB"}
"""Units of pg_settings of the sizes that are advised, for blocks of 8 kB."""


def in_unit(value: str, unit: str | None) -> str:
    """Return a value as a number in the unit of pg_settings: `4GB` in 8kB is 524288.

    A value without a unit is already in that unit. A value that is not a size is returned unchanged.
    """
    if unit is None or not unit.endswith("B") or not value.endswith("B"):
        return value
    return str(parse_bytes(value) // parse_bytes(unit if unit[0].isdecimal() else f"1{unit}"))


def huge_page_word(size_bytes: int) -> str:
    """Return a size of huge pages as the kernel's command line takes it: `1G`, `2M`, `64K`."""
    return as_setting(size_bytes)[:-1].upper()


def format_plain(value: float) -> str:
    """Return a number of at most four decimals without needless zeros and never with an exponent: `0.05`."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def format_exact(value: float) -> str:
    """Return a number with up to 15 digits, an integer with all of them: `0.00000067`, `9007199254740992`.

    It has an exponent only where it is beyond all that is counted.
    """
    if abs(value) < 1e24 and value == int(value):
        return f"{int(value)}"
    text = f"{value:.15g}"
    return f"{Decimal(text):f}" if 1e-24 < abs(value) < 1e24 else text


def format_percent(ratio: float, digits: int = 0, *, sign: bool = False) -> str:
    """Return a ratio in percent, as PostgreSQL's manual writes it: `23%` for 0.23, with its sign `+23%`."""
    value = round(100 * ratio, digits) or 0.0  # not -0
    return f"{value:{'+' if sign else ''}.{digits}f}%"


def format_minutes(seconds: float) -> str:
    """Return an estimated time, no finer than it is known: `28 s`, `3 min`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{format_count(round(seconds / 60))} min"


def longer_seconds(wanted_seconds: float, recorded_seconds: float) -> float:
    """Return how long to record instead: half as long again at least, as a second more changes nothing."""
    return max(wanted_seconds, 1.5 * recorded_seconds)


def format_hours(seconds: float) -> str:
    """Return an estimated time as `format_minutes` does, a long one in hours: `28 s`, `3 min`, `2 h`."""
    return format_minutes(seconds) if seconds < 5970 else f"{format_count(round(seconds / 3600))} h"


def format_time(text: str) -> str:
    """Return a time of ISO 8601 in UTC, to the second: `2026-05-01 09:00:00 UTC`.

    A text that is no time comes back as it is.
    """
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        return text
    if at.tzinfo is None:
        return f"{at:%Y-%m-%d %H:%M:%S}"
    return f"{at.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def iso_time(at: float) -> str | None:
    """Return a time in seconds since 1970 as ISO 8601, in UTC to the millisecond; None where it cannot be."""
    try:
        return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return None


def seconds_of(text: str) -> float:
    """Return a time of ISO 8601 in seconds since 1970; without a zone it is UTC.

    Raises:
        ValueError: it is none.
    """
    at = datetime.datetime.fromisoformat(text)
    return (at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)).timestamp()


def format_count(value: float) -> str:
    """Return a number with its thousands apart, or with two digits where it is small: `12 345`, `0.25`.

    Never in powers of ten; what is less than a thousandth is `below 0.001`.
    """
    if value != 0 and abs(value) < 0.001:
        return "below 0.001"
    if abs(value) < 10 and value != round(value):
        return f"{value:.2g}"
    return f"{value:,.0f}".replace(",", " ")


def format_rate(per_second: float) -> str:
    """Return a rate as a sentence has it, to a tenth: `347`, `2.4`, and `0` for hardly any."""
    return format_count(round(per_second) if per_second >= 10 else round(per_second, 1))


def format_estimate(value: float, low: float, high: float, show: Callable[[float], str] = format_rate) -> str:
    """Return a predicted value with its interval, for sentences: `25 (20 to 31)`, `at most 3` where it is 0.

    Args:
        value: predicted.
        low, high: ends of its interval.
        show: formats one of the three; where both ends look alike, there is no interval to be shown.
    """
    shown, least, most = (show(one) for one in (value, low, high))
    if least == most:
        return shown
    return f"at most {most}" if shown == show(0.0) else f"{shown} ({least} to {most})"


def format_many(number: float, one: str, several: str = "") -> str:
    """Return a count with its noun: `1 round`, `3 rounds`; the plural has an `s` unless it is given."""
    text = format_count(number)
    return f"{text} {one if text == '1' else several or one + 's'}"
