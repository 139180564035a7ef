"""effective_cache_size: what the planner takes for cached when it compares plans.

PostgreSQL's manual ("effective_cache_size"): count shared_buffers and the part of the kernel's page cache
that serves data files, where data may lie in both. Costs depend on it weakly (costsize.c,
`index_pages_fetched`), so a value within a factor of 1.5 is left.
"""

from __future__ import annotations

from typing import Final

from pgsweep.advice.shared_buffers import undo_of
from pgsweep.advice.situation import Situation, rounded_down
from pgsweep.records.advice import AdvisedSetting
from pgsweep.units import BLOCK_BYTES, as_setting, format_bytes

_NEAR: Final = 1.5
_PURPOSE: Final = "it only informs the planner"


def advise_planner(situation: Situation, size_bytes: int) -> AdvisedSetting:
    """Return the advice for a size of shared_buffers."""
    blocks = situation.number("effective_cache_size")
    today = None if blocks is None else blocks * BLOCK_BYTES
    if situation.no_page_cache is not None:
        why = f"what holds pages behind the pool of {situation.no_page_cache} is not the page cache of Linux"
        return _left(today, why, unknown=True)
    if situation.prediction.verdict.level == "refused" and not situation.memory_named:
        # Where the memory is named the value follows from that alone.
        why = "the prediction is refused, so nothing is advised of the caches; or name the memory: --ram SIZE"
        return _left(today, why, unknown=True)
    share = situation.share_or_why(size_bytes)
    if isinstance(share, str):
        return _left(today, share, unknown=True)
    if today is None:
        return _left(today, "today's value is not known", unknown=True)
    memory = situation.prediction.memory
    disk = (
        None
        if memory is None
        else next((p for p in memory.points if p.shared_buffers_bytes == size_bytes), None)
    )
    twice = 0 if disk is None else disk.held_twice_bytes
    left = share.page_cache_bytes
    both = rounded_down(size_bytes + left - min(twice, left))
    of = f"{format_bytes(size_bytes)} of shared_buffers and {format_bytes(left)} of page cache"
    of += f" (at least {format_bytes(share.low_bytes)})" if share.low_bytes < left else ""
    of += f", {format_bytes(twice)} of it held twice" if twice else ""
    if max(both, today) / max(min(both, today), 1) <= _NEAR:
        return _left(today, f"close enough to what both caches can hold: {of}")
    return AdvisedSetting(
        name="effective_cache_size",
        where="server",
        today=as_setting(today),
        value=as_setting(both),
        action="set",
        kind="assumed" if situation.memory_assumed else "predicted",
        reason=f"there are {of}",
        purpose=_PURPOSE,
        takes_effect="reload",
        undo=undo_of("effective_cache_size", as_setting(today)),
    )


def _left(today: int | None, why: str, *, unknown: bool = False) -> AdvisedSetting:
    return AdvisedSetting(
        name="effective_cache_size",
        where="server",
        today=None if today is None else as_setting(today),
        value=None,
        action="unknown" if unknown else "leave",
        kind="measured",
        reason=why,
        purpose="" if unknown else _PURPOSE,
    )
