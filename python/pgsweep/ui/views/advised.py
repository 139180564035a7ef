"""One setting that is advised, in words."""

from __future__ import annotations

import textwrap
from typing import Final

from pgsweep.plain import sentence
from pgsweep.records.advice import AdvisedSetting, Gain
from pgsweep.ui.kit.numbers import format_bytes, seconds
from pgsweep.units import format_percent

_NO_GAIN: Final = "No gain in throughput is expected"
ACTIONS: Final = {"set": "set", "leave": "leave it", "unknown": "not known"}
"""What is done with a setting, in words."""


def about(one: AdvisedSetting, *, undo: bool = True) -> list[str]:
    """Return why a setting is advised, what is expected of it, and how it takes effect; each in a line.

    Args:
        one: the setting.
        undo: whether to say what puts the former value back.
    """
    kind = "" if one.action == "unknown" else f" ({one.kind})"
    found = [f"{sentence(one.reason)[:-1]}{kind}."]
    if one.gain is not None:
        found.append(f"Expected: {gain_text(one.gain)}.")
    elif one.purpose:
        found.append(f"{_NO_GAIN}: {one.purpose}.")
    if one.takes_effect and one.where != "command":
        back = f" To undo: {one.undo}" if undo and one.undo else ""
        found.append(f"Takes effect at: {one.takes_effect}.{back}")
    return found


def gain_text(gain: Gain) -> str:
    """Return a gain with its interval: `23% less time waiting for reads (12 to 30)`."""
    if gain.unit == "bytes":
        most = "" if gain.high == gain.low else f", up to {format_bytes(gain.high)}"
        return f"{format_bytes(gain.value)} less {gain.of}{most}"
    if gain.unit == "seconds":
        return f"{seconds(gain.value)} less {gain.of} ({seconds(gain.low)} to {seconds(gain.high)})"
    if gain.of == "throughput":
        value, low, high = (format_percent(each, sign=True) for each in (gain.value, gain.low, gain.high))
        return f"{value} throughput ({low} to {high})"
    return f"{change(gain.value)} {gain.of} ({change(gain.high)} to {change(gain.low)})"


def change(saved: float) -> str:
    """Return by how much less or more: a saving of 0.25 is `-25%`, one of -3 `4.0 times`."""
    if saved < -1:
        return f"{1 - saved:.1f} times"
    return f"{format_percent(-saved, sign=True)}"


def comment(mark: str, text: str) -> list[str]:
    """Return a text as comments, in lines of at most 100 characters."""
    # A line end in a name would end the comment.
    words = " ".join(text.split())
    # A command or the name of a file in it stays whole.
    return textwrap.wrap(
        words,
        100,
        initial_indent=f"{mark} ",
        subsequent_indent=f"{mark}     ",
        break_long_words=False,
        break_on_hyphens=False,
    )
