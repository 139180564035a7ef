"""Numbers in readable form. All formatting of values happens here; the records hold base units."""

from __future__ import annotations

import math

from pgsweep.units import format_bytes, format_hours, format_percent, format_plain
from pgsweep.units import format_count as count
from pgsweep.units import format_many as counted

__all__ = [
    "NONE",
    "byte_rate",
    "count",
    "counted",
    "error_points",
    "factor",
    "factors",
    "figure",
    "format_bytes",
    "format_seconds",
    "known_bytes",
    "percent",
    "points",
    "rough_percent",
    "rough_seconds",
    "seconds",
    "server_name",
    "share",
    "short_seconds",
    "times",
]

NONE = "–"


def percent(ratio: float | None, *, sign: bool = True) -> str:
    """Return `14.60%` for 0.146; one digit more where the value is small, `–` where there is none."""
    if ratio is None or math.isnan(ratio):
        return "–"
    value = 100 * ratio
    text = format_percent(ratio, 2 if abs(value) >= 0.1 or value == 0 else 3)
    return text if sign else text.removesuffix("%")


def rough_percent(ratio: float) -> str:
    """Return a share in two digits, for narrow places: `15%`, `0.4%`."""
    value = 100 * ratio
    return format_percent(ratio, 0 if value >= 9.95 or value == 0 else 1)


def points(ratio: float | None) -> str:
    """Return a difference of two ratios in percentage points, with its sign: `+0.12`."""
    if ratio is None or math.isnan(ratio):
        return "–"
    value = 100 * ratio
    return f"{value:+.2f}" if round(value, 2) != 0 else "0.00"


def error_points(error_ratio: float, digits: int = 2) -> str:
    """Return an error of ratios, which has no sign, in percentage points: `0.12`."""
    return f"{100 * error_ratio:.{digits}f}"


def share(part: float, whole: float) -> str:
    """Return a part in percent with one decimal and without the unit, for columns: `14.6`."""
    return format_percent(part / whole, 1).removesuffix("%")


def factor(ratio: float, unit: str = "x") -> str:
    """Return by what a value is multiplied: `1.24 x`, or with another unit `1.24 times`."""
    return f"{ratio:.2f} {unit}"


def factors(low: float, high: float) -> str:
    """Return the interval of a factor: `1.07 to 1.28`."""
    return f"{low:.2f} to {high:.2f}"


def known_bytes(value: int | None) -> str:
    """Return bytes in a readable unit; `0` for none, `–` where it is not known."""
    return "–" if value is None else format_bytes(value) if value else "0"


def byte_rate(bytes_per_second: float) -> str:
    """Return a rate in bytes: `1.5 MB/s`; `0/s` for none."""
    return f"{known_bytes(round(bytes_per_second))}/s"


def server_name(version: str) -> str:
    """Return `PostgreSQL 18.1` for the server_version `18.1`."""
    return version if version.startswith("PostgreSQL") else f"PostgreSQL {version}"


def millis(ratio: float | None) -> str:
    """Return seconds per second as milliseconds per second; what is less than a thousandth of that is 0."""
    return figure(None if ratio is None else round(1000 * ratio, 3) + 0.0)


def figure(value: float | None) -> str:
    """Return a number to three digits, never in powers of ten; `–` where there is none."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return count(round(value))
    digits = min(9, max(0, 2 - math.floor(math.log10(abs(value)))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def times(number: int) -> str:
    """Return how often: `once`, `3 times`."""
    return "once" if number == 1 else f"{count(number)} times"


def seconds(value: float) -> str:
    """Return a time to three digits or so: `28 s`, `3 min 20 s`, `1 h 5 min`."""
    if value < 9.95:
        return format_seconds(value)
    whole = round(value)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(whole, 3600)
    return f"{hours} h {rest // 60} min" if rest >= 60 else f"{hours} h"


def rough_seconds(value: float) -> str:
    """Return a time in one unit, for narrow places: `28 s`, `3 min`, `2 h`."""
    if value < 99.5:
        return seconds(value)
    return format_hours(value)


def format_seconds(value: float) -> str:
    """Return a measured time to a tenth of a second: `12 ms`, `1.3 s`."""
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.1f} s"


def short_seconds(value: float) -> str:
    """Return a time that may be some microseconds, as of one row by an index: `0.043 ms`."""
    if value >= 0.00995:
        return format_seconds(value)
    digits = 1 if value >= 0.001 else 2 if value >= 0.0001 else 3
    return f"{format_plain(round(value * 1000, digits))} ms"
