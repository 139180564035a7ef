"""What can be compared after a change: whether anything else changed, and whether the caches had filled."""

from __future__ import annotations

from typing import Final, Literal

from pgsweep.evidence.schema import STATISTICS_RESET
from pgsweep.pg.catalog.buffercache import hand_position
from pgsweep.records.prediction import PredictResult
from pgsweep.records.verification import VerifiedValue
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.page_cache.memory_shares import HostFacts, MemoryFacts
from pgsweep.sizing.throughput.measured_loop import others_share, sessions_of
from pgsweep.sizing.workload_change import Load
from pgsweep.units import format_bytes, format_percent, format_plain

HugePagesNow = Literal["on", "off"] | None
"""Whether shared memory lies in huge pages after the change; None where it does as before."""

THROUGHPUT: Final = "throughput"
FROM_DISK: Final = "read from disk"
BEHIND_THE_POOL: Final = (THROUGHPUT, FROM_DISK)
"""What depends on the page cache too. It is compared by how much was counted in all, not by a ratio of two
counters."""

_MORE_UNUSED: Final = 0.05
"""Of the memory: where so much more is unused than before the change, the page cache is still filling."""

_OTHERS_CHANGED: Final = 0.1
"""Of the processors: where other programs use so much more or less, the throughput shows that."""

_SESSIONS_CHANGED: Final = 0.1
"""Share of the sessions: where more than that are added or missing, the throughput is not compared."""

_PAUSE_CHANGED: Final = 0.2
"""Of the time from one transaction to the next: where a session pauses so much more or less, as one with a
set pace does, the throughput follows from that. Clients on a busy host vary a little too."""

FULL: Final = 0.98
"""The share of buffers in use from which on the pool counts as full."""

_SWINGING_PASSES: Final = 6.0
"""Pages that filled a pool have low counts, and the first clock passes evict many of them together: in a
simulated pool of pages that are read alike the miss ratio swings by up to 8% for five passes."""


def comparable(
    values: list[VerifiedValue],
    before: Observation,
    after: Observation,
    load: Load,
    huge_pages: HugePagesNow,
) -> tuple[list[VerifiedValue], list[str]]:
    """Return the values that can be compared, and why the others cannot.

    Args:
        values: all that was predicted and measured.
        before, after: the recordings.
        load: after the change.
        huge_pages: where that changed.
    """
    reasons = []
    another = crowded(before, after) or other_sessions(before, after) or _other_costs(huge_pages)
    if another is not None and any(one.name == THROUGHPUT for one in values):
        values = [one for one in values if one.name != THROUGHPUT]
        reasons.append(another)
    if _counts_lost(after, load):
        values = [one for one in values if one.name not in BEHIND_THE_POOL]
        reasons.append(
            "neither the throughput nor reads from disk are compared: what the server counted shortly before "
            "its statistics were reset is lost"
        )
    return values, reasons


def crowded(before: Observation, after: Observation) -> str | None:
    """Return the reason if other programs used more or less of the processors than before, else None."""
    was, now = others_share(before), others_share(after)
    if was is None or now is None or abs(now - was) <= _OTHERS_CHANGED:
        return None
    return (
        f"the throughput is not compared: other programs used {format_percent(was)} of the processors "
        f"before, and {format_percent(now)} now"
    )


def other_sessions(before: Observation, after: Observation) -> str | None:
    """Return the reason if the number of sessions or their pauses changed, which changes the throughput."""
    was, now = sessions_of(before), sessions_of(after)
    if was is None or now is None:
        return None
    if abs(now.count - was.count) > _SESSIONS_CHANGED * max(now.count, was.count):
        counts = [format_plain(round(one.count, 1)) for one in (was, now)]
        return (
            "the throughput is not compared: the number of connected sessions was "
            f"{counts[0]} before, and is {counts[1]} now"
        )
    longer = now.pause_seconds - was.pause_seconds
    if abs(longer) > _PAUSE_CHANGED * max(was.transaction_seconds, now.transaction_seconds):
        pauses = [format_plain(round(one.pause_seconds * 1000, 3)) for one in (was, now)]
        return (
            f"the throughput is not compared: for each transaction a session paused {pauses[0]} ms before, "
            f"and {pauses[1]} ms now"
        )
    return None


def _other_costs(huge_pages: HugePagesNow) -> str | None:
    """Return the reason if accesses take more or less processor time than before, else None."""
    if huge_pages is None:
        return None
    now = "lies in huge pages now" if huge_pages == "on" else "no longer lies in huge pages"
    return (
        f"the throughput is not compared: shared memory {now}, and what that changes for the processors is "
        "not predicted; the page tables are taken into account"
    )


def _counts_lost(after: Observation, load: Load) -> bool:
    return load.totals.was_reset or STATISTICS_RESET in after.evidence.warnings


def unsettled(prediction: PredictResult, after: Observation) -> str | None:
    """Return the reason if the pool was still filling while it was observed, else None."""
    if prediction.no_eviction is not None:
        return None
    used, blocks = after.table("snapshot_times")["used_frames"], after.server.pool_blocks
    # Where the blocks were sampled, `used_frames` counts those of the sample.
    if after.server.sampling_rate < 1 or not len(used) or used.max() >= blocks * FULL:
        return None
    share = format_percent(used.max() / blocks)
    return (
        f"the pool was not full after the change ({share} of {format_bytes(after.server.pool_bytes)}): let "
        "the load run on, and verify again"
    )


def just_filled(after: Observation) -> str | None:
    """Return the reason if the clock hand shows that the pool was filled shortly before, else None."""
    blocks = max(after.server.pool_blocks, 1)
    passes, victim, passed = (
        after.counters.first("pool", name) for name in ("complete_passes", "next_victim", "hand_frames")
    )
    if passes is not None and victim is not None:
        passed = hand_position((int(victim), int(passes)), blocks)
    if passed is None or passed >= _SWINGING_PASSES * blocks:
        return None
    times = format_plain(round(passed / blocks, 1))
    return (
        f"the clock hand had passed the pool {times} times since the server started: the contents of a pool "
        "that has just been filled fluctuate for some clock passes; let the load run on, and verify again"
    )


def filling(before: HostFacts, after: HostFacts, values: list[VerifiedValue]) -> str | None:
    """Return the reason if more was read from disk because the page cache was still filling, else None.

    Args:
        before, after: the servers; where their hosts' memory was not recorded there is no answer.
        values: what was compared.
    """
    disk = next((one for one in values if one.name == FROM_DISK), None)
    shares = [_unused_share(one) for one in (before, after)]
    if disk is None or disk.within or disk.measured < disk.predicted or None in shares:
        return None
    was, now = (share or 0.0 for share in shares)
    if now <= was + _MORE_UNUSED:
        return None
    return (
        f"more was read from disk than predicted, but {format_percent(now)} of the memory was still unused "
        f"({format_percent(was)} before): the page cache was filling; let the load run on, and verify again"
    )


def _unused_share(server: HostFacts) -> float | None:
    """Return the share of the memory that held nothing when it was recorded; None where not known."""
    facts = MemoryFacts.of(server)
    if facts is None:
        return None
    held = facts.other_bytes + facts.held_by_shared_bytes + int(server.host["memory_page_cache_bytes"])
    return max(0.0, 1 - held / facts.memory_bytes)
