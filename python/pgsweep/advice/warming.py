"""What to warm where a restart is advised: a restart empties the pool."""

from __future__ import annotations

from typing import Final

from pgsweep.advice.situation import Situation
from pgsweep.records.advice import AdvisedSetting
from pgsweep.units import format_bytes

_NAMED: Final = 5
_SAVE: Final = "pgsweep warm save before.heat"
_RESTORE: Final = "pgsweep warm restore before.heat"


def advise_warming(situation: Situation, *, restarts: bool) -> AdvisedSetting:
    """Return what to run before and after the restart.

    Args:
        situation: what is known.
        restarts: a setting is advised that takes a restart.
    """
    if not restarts:
        return _advice("leave", None, "no restart is advised")
    contents = situation.contents
    held = "" if contents is None else f"; of it {_named(contents.relations)}"
    used = 0 if contents is None else sum(contents.bytes_by_usage_count)
    what = "what the pool holds" if not used else f"{format_bytes(used)} lie in the pool{held}"
    if "pg_prewarm" in situation.settings.get("shared_preload_libraries", ""):
        return _advice(
            "leave", None, f"pg_prewarm is loaded and brings back what was in the pool (autoprewarm): {what}"
        )
    why = f"a restart empties the pool: {what}"
    return _advice("set", f"{_SAVE}; restart; {_RESTORE}", why)


def _named(relations: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in relations[:_NAMED])


def _advice(action: str, value: str | None, why: str) -> AdvisedSetting:
    return AdvisedSetting(
        name="warm-up",
        where="command",
        today=None,
        value=value,
        action="set" if action == "set" else "leave",
        kind="measured",
        reason=why,
        takes_effect="at once" if value else "",
    )
