"""Advice that does not wander: a setting without a gain keeps the value that was advised before.

What such a setting should be follows from the memory that is free at the moment, which comes and goes by
gigabytes. Nothing is to be gained by following it, so the value stays until it is wrong by a factor.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pgsweep.advice.summary import summarized
from pgsweep.errors import PgsweepError
from pgsweep.records.advice import AdvisedSetting
from pgsweep.records.serve import ServeAdvised
from pgsweep.units import parse_bytes

_NEAR: Final = 1.5
"""Values within this factor are one advice, as in advice/planner.py."""

_AWAY: Final = 2.0
"""A setting that was to be left is advised when it is wrong by this factor."""


def steadied(advised: ServeAdvised, last: ServeAdvised | None) -> ServeAdvised:
    """Return the advice with the values of the last one for settings without a gain, where these still do.

    Args:
        advised: decided now.
        last: shown until now, if there was one.
    """
    if last is None:
        return advised
    before = {setting.name: setting for setting in last.result.settings}
    settings = [_kept(setting, before.get(setting.name)) for setting in advised.result.settings]
    summary, decision = summarized(settings)
    result = msgspec.structs.replace(advised.result, settings=settings, summary=summary, decision=decision)
    return msgspec.structs.replace(advised, result=result)


def _kept(now: AdvisedSetting, before: AdvisedSetting | None) -> AdvisedSetting:
    """Return the setting as it is advised now, or as it was before."""
    if before is None or now.action != "set" or now.gain is not None or now.today != before.today:
        return now
    if now.where != "server" or now.takes_effect == "restart":
        return now  # it follows from another setting
    value, other = _bytes(now.value), _bytes(before.value if before.action == "set" else now.today)
    if value is None or other is None or before.action == "unknown":
        return now
    apart = max(value, other) / max(min(value, other), 1)
    return before if apart <= (_NEAR if before.action == "set" else _AWAY) else now


def _bytes(text: str | None) -> int | None:
    try:
        return None if text is None else parse_bytes(text)
    except PgsweepError:
        return None
