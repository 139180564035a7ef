"""Whether what was predicted came true: `pgsweep verify`.

The evidence recorded before the change predicts what the server does at the size of shared_buffers that it
has now; a recording made now says what it does. Misses and reads from disk are compared per access, so that a
busier hour does not count as an error of the prediction. The throughput is compared only where as many
sessions ask, with the pauses that they made before, and it is predicted at the pace that the host has now. If
the load itself has changed, the result says that instead.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Final, Literal

import msgspec

from pgsweep.errors import UsageError
from pgsweep.evidence.same_cluster import check_cluster
from pgsweep.evidence.schema import STATISTICS_RESET, other_cluster
from pgsweep.evidence.store import Evidence, EvidenceMeta
from pgsweep.pg.buffercache import hand_position
from pgsweep.pg.connect import connect
from pgsweep.pg.refusals import explained
from pgsweep.records.prediction import PredictResult
from pgsweep.records.verification import VerifiedValue, VerifyResult, VerifyVerdict
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.page_cache.disk_reads import disk_bytes_per_second
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.sizing.predict import predict
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.sizing.throughput.host_pace import PaceEffect, effect_of_pace
from pgsweep.sizing.throughput.measured_loop import others_share, sessions_of
from pgsweep.sizing.workload_change import Load, compare_loads, load_of
from pgsweep.units import BLOCK_BYTES, Z90, format_bytes, format_percent, format_plain

_THROUGHPUT: Final = "throughput"
_FROM_DISK: Final = "read from disk"
_COUNTED: Final = (_THROUGHPUT, _FROM_DISK)
"""What is compared by how much was counted in all, not by a ratio of two counters."""

_MORE_UNUSED: Final = 0.05
"""Of the memory: where so much more is unused than before the change, the page cache is still filling."""

_OTHERS_CHANGED: Final = 0.1
"""Of the processors: where other programs use so much more or less, the throughput shows that."""

_SESSIONS_CHANGED: Final = 0.1
"""Share of the sessions: where more than that are added or missing, the throughput is not compared."""

_PAUSE_CHANGED: Final = 0.2
"""Of the time from one transaction to the next: where a session pauses so much more or less, as one with a
set pace does, the throughput follows from that. Clients on a busy host vary a little too."""

_UNLIKELY: Final = 0.1
"""In how many cases a prediction that is right may be called wrong."""

_FULL: Final = 0.98
"""The share of buffers in use from which on the pool counts as full."""

_SWINGING_PASSES: Final = 6.0
"""Pages that filled a pool have low counts, and the first clock passes evict many of them together: in a
simulated pool of pages that are read alike the miss ratio swings by up to 8% for five passes."""


def verify(before: Path, after: Path, *, memory_bytes: int | None = None, seed: int = 0) -> VerifyResult:
    """Return whether the prediction from one recording holds in a later one of the same server.

    Args:
        before: evidence recorded before the change.
        after: evidence recorded after it.
        memory_bytes: what pool and page cache share after the change; as before by default.
        seed: of all draws.

    Raises:
        EvidenceError: evidence cannot be read.
        UsageError: the two are not of the same database.
    """
    for path in (before, after):
        if path.is_file():
            raise UsageError(
                f"`{path}` is a trace without its server", hint="name folders that `pgsweep record` wrote"
            )
    first, second = Evidence.open(before), Evidence.open(after)
    _check_same(first, second)
    size = second.meta.shared_buffers_blocks * second.meta.block_size_bytes
    today = first.meta.shared_buffers_blocks * first.meta.block_size_bytes
    huge_pages = _other_huge_pages(first.meta, second.meta)
    prediction = predict(
        before,
        sizes_bytes=sorted({size, today}),
        memory_bytes=memory_bytes,
        what_if=[] if huge_pages is None else [f"huge_pages {huge_pages}"],
        seed=seed,
    )
    if prediction.changed is not None:
        prediction = msgspec.structs.replace(
            prediction,
            points=prediction.changed.points,
            memory=prediction.changed.memory,
            verdict=prediction.changed.verdict,
        )
    loads = load_of(Observation(first)), load_of(Observation(second))
    pace = effect_of_pace(Observation(first), Observation(second))
    values = _values(prediction, size, first, second, loads, pace)
    crowded = _crowded(first, second) or _other_sessions(first, second) or _other_costs(huge_pages)
    if crowded is not None and any(one.name == _THROUGHPUT for one in values):
        values = [one for one in values if one.name != _THROUGHPUT]
    else:
        crowded = None
    lost = _counts_lost(second, loads[1])
    if lost is not None:
        values = [one for one in values if one.name not in _COUNTED]
    workload = compare_loads(*loads)
    changed = [one for one in workload if one.changed]
    verdict: VerifyVerdict = "as predicted"
    reasons: list[str] = []
    outside = [one for one in values if not one.within]
    wrong = [one for one in outside if not _within_together(one, len(values))]
    if not values:
        verdict = "not known"
        reasons += prediction.verdict.reasons or ["nothing is predicted for this size"]
    elif unsettled := _unsettled(prediction, second, size) or filling(first.meta, second.meta, values):
        verdict = "not known"
        reasons.append(unsettled)
    elif changed:
        verdict = "workload changed"
        held = "the prediction applies to the earlier load only"
        if not outside:
            held = "all measured values are within their intervals nevertheless"
        reasons.append(f"the load has changed, so the prediction cannot be judged; {held}")
    elif wrong and (swings := just_filled(second)):
        verdict = "not known"
        reasons.append(swings)
    elif wrong:
        verdict = "not as predicted"
        reasons.append("outside the interval: " + ", ".join(one.name for one in outside))
    elif outside:
        reasons.append(_by_chance(outside, len(values)))
    if crowded is not None:
        reasons.append(crowded)
    elif any(one.name == _THROUGHPUT for one in values):
        reasons += pace.reasons
    reasons += [] if lost is None else [lost]
    for when, evidence in (("before", first), ("after", second)):
        reasons += [f"the recording {when} the change: {warning}" for warning in evidence.warnings]
    unknown = _unknown_cluster(first.meta, second.meta)
    reasons += [] if unknown is None else [unknown]
    if size == today:
        reasons.append(f"shared_buffers is still {format_bytes(size)}: this verifies no change of it")
    return VerifyResult(
        server_version=second.meta.server_version,
        database=second.meta.database,
        before=str(before),
        after=str(after),
        shared_buffers_before=today,
        shared_buffers_after=size,
        verdict=verdict,
        reasons=reasons,
        values=values,
        workload=workload,
    )


def check_server(conninfo: str, before: Path) -> None:
    """Refuse a server that is known not to be the one that evidence was recorded on, before it is recorded.

    Raises:
        EvidenceError: the evidence cannot be read.
        UsageError: it is another server.
        ConnectionFailed: it cannot be reached.
    """
    meta = Evidence.open(before).meta
    with connect(conninfo) as connection, explained():
        check_cluster(connection, meta, before)


def _check_same(first: Evidence, second: Evidence) -> None:
    one, other = first.meta, second.meta
    if one.database != other.database or one.server_version_num // 10000 != other.server_version_num // 10000:
        raise UsageError(
            f"`{first.path}` and `{second.path}` are not of the same database",
            cause=f"database {one.database} of PostgreSQL {one.server_version}, and {other.database} of "
            f"{other.server_version}",
            hint="name the evidence that was recorded on this database before the change",
        )
    if one.block_size_bytes != other.block_size_bytes:
        raise UsageError(
            f"`{first.path}` and `{second.path}` are not of the same server",
            cause=f"the one has blocks of {one.block_size_bytes} bytes, the other of "
            f"{other.block_size_bytes}",
            hint="name the evidence that was recorded on this database before the change",
        )
    if other_cluster(one.system_identifier, other.system_identifier):
        raise UsageError(
            f"`{first.path}` and `{second.path}` are not of the same server",
            cause=f"their clusters have the system identifiers {one.system_identifier} and "
            f"{other.system_identifier}",
            hint="name the evidence that was recorded on this server before the change",
        )


def _other_huge_pages(before: EvidenceMeta, after: EvidenceMeta) -> Literal["on", "off"] | None:
    """Return whether shared memory lies in huge pages now, where that has changed; else None."""
    was, now = (MemoryFacts.of(meta) for meta in (before, after))
    if was is None or now is None or was.huge_pages == now.huge_pages:
        return None
    return "on" if now.huge_pages else "off"


def _other_costs(huge_pages: Literal["on", "off"] | None) -> str | None:
    """Return the reason if accesses take more or less processor time than before, else None."""
    if huge_pages is None:
        return None
    now = "lies in huge pages now" if huge_pages == "on" else "no longer lies in huge pages"
    return (
        f"the throughput is not compared: shared memory {now}, and what that changes for the processors is "
        "not predicted; the page tables are taken into account"
    )


def _counts_lost(after: Evidence, load: Load) -> str | None:
    """Return the reason if a part of what was counted after the change is lost, else None."""
    if not load.totals.was_reset and STATISTICS_RESET not in after.warnings:
        return None
    return (
        "neither the throughput nor reads from disk are compared: what the server counted shortly before its "
        "statistics were reset is lost"
    )


def _unknown_cluster(before: EvidenceMeta, after: EvidenceMeta) -> str | None:
    """Return a warning if it is not known whether both are of the same cluster, else None."""
    if before.system_identifier and after.system_identifier:
        return None
    which = "the first recording does" if after.system_identifier else "the second recording does"
    if not before.system_identifier and not after.system_identifier:
        which = "they do"
    return (
        f"whether both recordings are of the same server was not checked: {which} not have the cluster's "
        "system identifier"
    )


def _crowded(first: Evidence, second: Evidence) -> str | None:
    """Return the reason if other programs used more or less of the processors than before, else None."""
    before, after = others_share(Observation(first)), others_share(Observation(second))
    if before is None or after is None or abs(after - before) <= _OTHERS_CHANGED:
        return None
    return (
        f"the throughput is not compared: other programs used {format_percent(before)} of the processors "
        f"before, and {format_percent(after)} now"
    )


def _other_sessions(first: Evidence, second: Evidence) -> str | None:
    """Return the reason if the number of sessions or their pauses changed, which changes the throughput."""
    before, after = sessions_of(Observation(first)), sessions_of(Observation(second))
    if before is None or after is None:
        return None
    if abs(after.count - before.count) > _SESSIONS_CHANGED * max(after.count, before.count):
        was, now = (format_plain(round(one.count, 1)) for one in (before, after))
        return f"the throughput is not compared: {was} sessions were connected before, and {now} now"
    longer = after.pause_seconds - before.pause_seconds
    if abs(longer) > _PAUSE_CHANGED * max(before.transaction_seconds, after.transaction_seconds):
        was, now = (format_plain(round(one.pause_seconds * 1000, 3)) for one in (before, after))
        return (
            f"the throughput is not compared: for each transaction a session paused {was} ms before, and "
            f"{now} ms now"
        )
    return None


def _within_together(value: VerifiedValue, count: int) -> bool:
    """Return whether a value lies in an interval with which all of so many do in nine of ten cases.

    Each may lie outside in a tenth of the cases, divided by their number (Bonferroni's inequality).
    """
    wider = NormalDist().inv_cdf(1 - _UNLIKELY / 2 / count) / Z90
    margin = Z90 * value.measured_error
    low, high = value.low - value.predicted - margin, value.high - value.predicted + margin
    return low * wider <= value.measured - value.predicted <= high * wider


def _by_chance(outside: list[VerifiedValue], count: int) -> str:
    """Return the sentence about values outside their own interval, but within that of all together."""
    return (
        "outside its 90% interval, but not so far that it is unlikely for one of "
        f"{count} values: " + ", ".join(one.name for one in outside)
    )


def _unsettled(prediction: PredictResult, second: Evidence, size: int) -> str | None:
    """Return the reason if the pool was still filling while it was observed, else None."""
    if prediction.no_eviction is not None:
        return None
    used = second.table("snapshot_times")["used_frames"]
    blocks = second.meta.shared_buffers_blocks
    if second.meta.sampling or not len(used) or used.max() >= blocks * _FULL:
        return None
    share = used.max() / blocks
    return (
        f"the pool was not full after the change ({format_percent(share)} of {format_bytes(size)}): let the "
        "load run on, and verify again"
    )


def just_filled(after: Evidence) -> str | None:
    """Return the reason if the clock hand shows that the pool was filled shortly before, else None."""
    counters = after.table("counters")
    of_pool = counters["scope"] == "pool"

    def first(name: str) -> float | None:
        values = counters["value"][of_pool & (counters["name"] == name)]
        return float(values[0]) if len(values) else None

    blocks = max(after.meta.shared_buffers_blocks, 1)
    passes, victim, passed = first("complete_passes"), first("next_victim"), first("hand_frames")
    if passes is not None and victim is not None:
        passed = hand_position((int(victim), int(passes)), blocks)
    if passed is None or passed >= _SWINGING_PASSES * blocks:
        return None
    times = format_plain(round(passed / blocks, 1))
    return (
        f"the clock hand had passed the pool {times} times since the server started: the contents of a pool "
        "that has just been filled fluctuate for some clock passes; let the load run on, and verify again"
    )


def filling(before: EvidenceMeta, after: EvidenceMeta, values: list[VerifiedValue]) -> str | None:
    """Return the reason if more was read from disk because the page cache was still filling, else None.

    Args:
        before, after: what was recorded of the host's memory; without it there is no answer.
        values: what was compared.
    """
    disk = next((one for one in values if one.name == _FROM_DISK), None)
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


def _unused_share(meta: EvidenceMeta) -> float | None:
    """Return the share of the memory that held nothing when it was recorded; None where not known."""
    facts = MemoryFacts.of(meta)
    if facts is None:
        return None
    held = facts.other_bytes + facts.held_by_shared_bytes + int(meta.host["memory_page_cache_bytes"])
    return max(0.0, 1 - held / facts.memory_bytes)


def _values(
    prediction: PredictResult,
    size: int,
    first: Evidence,
    second: Evidence,
    loads: tuple[Load, Load],
    pace: PaceEffect,
) -> list[VerifiedValue]:
    before, after = loads
    accesses = after.totals.hits + after.totals.misses
    point = next((one for one in prediction.points if one.shared_buffers_bytes == size), None)
    if point is None or accesses <= 0:
        return []
    values = [
        _value(
            "miss ratio of the pool",
            "ratio",
            prediction.observed.miss_ratio,
            (point.miss_ratio, point.low, point.high),
            after.totals.misses / accesses,
            miss_error(after.totals),
        )
    ]
    memory = prediction.memory
    disk = (
        None
        if memory is None
        else next((one for one in memory.points if one.shared_buffers_bytes == size), None)
    )
    read = disk_bytes_per_second(Observation(second))
    if disk is not None and read is not None:
        observed = prediction.observed
        rate = observed.accesses / max(observed.seconds, 1e-9)
        then = after.accesses_per_second
        was = disk_bytes_per_second(Observation(first))
        values.append(
            _value(
                _FROM_DISK,
                "bytes per access",
                None if was is None else was / rate,
                tuple(  # type: ignore[arg-type]
                    number / rate
                    for number in (disk.disk_bytes_per_second, disk.disk_bytes_low, disk.disk_bytes_high)
                ),
                read / then,
                # Reads are as random as misses are; what is read at once counts as one block at least.
                math.sqrt(read * after.totals.seconds * BLOCK_BYTES) / accesses,
            )
        )
    loop = [] if memory is None or memory.throughput is None else memory.throughput.points
    ratio = next((one for one in loop if one.shared_buffers_bytes == size), None)
    if ratio is not None and before.transactions_per_second > 0:
        values.append(
            _value(
                _THROUGHPUT,
                "of before",
                1.0,
                (ratio.ratio * pace.factor, ratio.low * pace.factor, ratio.high * pace.factor),
                found := after.transactions_per_second / before.transactions_per_second,
                found * pace.error,
            )
        )
    return values


def miss_error(totals: Totals) -> float:
    """Return the standard error of a counted miss ratio, that of independent accesses at least.

    The few samples of a trace show no variation.
    """
    accesses = max(totals.hits + totals.misses, 1.0)
    ratio = totals.misses / accesses
    return max(totals.miss_ratio_error, math.sqrt(ratio * (1 - ratio) / accesses))


def _value(
    name: str,
    unit: str,
    before: float | None,
    predicted: tuple[float, float, float],
    measured: float,
    error: float,
) -> VerifiedValue:
    value, low, high = predicted
    margin = Z90 * error
    return VerifiedValue(
        name=name,
        unit=unit,
        before=before,
        predicted=value,
        low=low,
        high=high,
        measured=measured,
        measured_error=error,
        within=low - margin <= measured <= high + margin,
    )
