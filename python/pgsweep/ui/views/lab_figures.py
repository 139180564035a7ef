"""Numbers of the lab in readable form: by the unit of a cell."""

from __future__ import annotations

import math

from pgsweep.ui.kit.numbers import NONE, figure, format_bytes, percent


def value_text(value: float | None, unit: str) -> str:
    """Return a value of a cell; with its unit where `unit_text` is empty."""
    if value is None or not math.isfinite(value):
        return NONE
    if unit == "ratio":
        return percent(value)
    if unit == "bytes":
        return format_bytes(value) if value else "0"
    if unit == "seconds":
        if abs(value) >= 1 or value == 0:
            return f"{figure(value)} s"
        return f"{figure(value * 1e3)} ms" if abs(value) >= 1e-3 else f"{figure(value * 1e6)} µs"
    return figure(value)


def unit_text(unit: str) -> str:
    """Return the unit that stands beside values."""
    return {"ratio": "part", "bytes": "", "seconds": ""}.get(unit, unit)
