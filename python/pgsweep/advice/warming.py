"""What to warm where a restart is advised: a restart empties the pool.

What it held is read again, block by block as sessions ask for it: from the page cache where it lies there
too, else from disk. Warming saves this waiting. The upper bound assumes that all blocks are read again. The
lower bound counts only blocks that were accessed again after the read (usage counts from 2 on). What lies
in both caches is simulated as the disk reads are. If they are not simulated, the interval goes from 0 to all,
and the estimate is its middle.
"""

from __future__ import annotations

from typing import Final

from pgsweep.advice.situation import Contents, Situation
from pgsweep.commands import on_server
from pgsweep.records.advice import AdvisedSetting, Gain, Kind
from pgsweep.units import BLOCK_BYTES, format_bytes

_NAMED: Final = 5
AFTER_RESTART: Final = "waiting for reads after the restart"


def advise_warming(situation: Situation, *, restarts: bool) -> AdvisedSetting:
    """Return what to run before and after the restart.

    Args:
        situation: what is known.
        restarts: a setting is advised that takes a restart.
    """
    if not restarts:
        return _left("no restart is advised", "it saves reads after a restart")
    contents = situation.contents
    largest = [] if contents is None else contents.relations[:_NAMED]
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    held = "" if contents is None else f"; of it {named}"
    used = 0 if contents is None else sum(contents.bytes_by_usage_count)
    what = "what the pool holds" if not used else f"{format_bytes(used)} lie in the pool{held}"
    libraries = situation.settings.get("shared_preload_libraries")
    if libraries is not None and "pg_prewarm" in libraries:
        why = f"pg_prewarm is loaded and brings back what was in the pool (autoprewarm): {what}"
        return _left(why, "autoprewarm saves the reads after a restart already")
    why = f"a restart empties the pool: {what}"
    if libraries is None:
        why += (
            "; whether pg_prewarm brings it back by itself (autoprewarm) is not known, because the role that "
            "made the recording may not read shared_preload_libraries, as a member of pg_monitor may"
        )
    gain: Gain | None = None
    kind: Kind = "measured"
    if contents is not None and used:
        gain, kind = _saved(situation, contents)
    return AdvisedSetting(
        name="warm-up",
        where="command",
        today=None,
        value=f"before the restart: {on_server('pgsweep warm save', 'before.heat')}; "
        f"after it: {on_server('pgsweep warm restore', 'before.heat')}",
        action="set",
        kind=kind,
        reason=why,
        gain=gain,
        takes_effect="at once",
    )


def _saved(situation: Situation, contents: Contents) -> tuple[Gain, Kind]:
    """Return how long sessions would wait for what the pool held, and what that rests on."""
    used = sum(contents.bytes_by_usage_count)
    again = sum(contents.bytes_by_usage_count[2:])
    memory, costs = situation.prediction.memory, situation.costs
    points = [] if memory is None else memory.points
    today = next((one for one in points if one.shared_buffers_bytes == situation.today_bytes), None)

    def wait(read_bytes: int, cached_bytes: int) -> float:
        copies = min(read_bytes, cached_bytes) / BLOCK_BYTES
        reads = read_bytes / BLOCK_BYTES - copies
        return reads * costs.disk_read_seconds + copies * costs.copy_seconds

    if today is None:
        low, high = wait(again, used), wait(used, 0)
        value = (low + high) / 2
    else:
        value = wait(used, today.held_twice_bytes)
        ends = [wait(again, today.held_twice_high_bytes), wait(used, today.held_twice_low_bytes)]
        low, high = min(value, *ends), max(value, *ends)
    gain = Gain(of=AFTER_RESTART, unit="seconds", value=value, low=low, high=high)
    known = today is not None and costs.disk_read_kind == "measured"
    return gain, "predicted" if known else "assumed"


def _left(why: str, purpose: str) -> AdvisedSetting:
    return AdvisedSetting(
        name="warm-up",
        where="command",
        today=None,
        value=None,
        action="leave",
        kind="measured",
        reason=why,
        purpose=purpose,
    )
