"""Whether what was predicted came true: `pgsweep verify`.

The evidence recorded before the change predicts what the server does at the size of shared_buffers that it
has now; a recording made now says what it does. Misses and reads from disk are compared per access, so that a
busier hour does not count as an error of the prediction. The throughput is compared only where as many
sessions ask, with the pauses that they made before, and it is predicted at the pace that the host has now. If
the load itself has changed, the result says that instead. A difference that is no larger than what the load
itself moved, and any difference at the same size, says nothing of the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

import msgspec

from pgsweep.errors import UsageError
from pgsweep.evidence.meta import check_trace
from pgsweep.evidence.same_cluster import check_cluster
from pgsweep.evidence.schema import EvidenceMeta, other_cluster
from pgsweep.evidence.store import Evidence
from pgsweep.pg.catalog.server import Server, read_server
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.refusals import explained
from pgsweep.records.prediction import PredictResult
from pgsweep.records.verification import VerifiedValue, VerifyResult, VerifyVerdict
from pgsweep.sizing.comparable import (
    BEHIND_THE_POOL,
    FROM_DISK,
    THROUGHPUT,
    HugePagesNow,
    comparable,
    filling,
    just_filled,
    unsettled,
)
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.page_cache.disk_reads import disk_bytes_per_second
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.sizing.predict import predict
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.sizing.throughput.host_pace import PaceEffect, effect_of_pace
from pgsweep.sizing.workload_change import Drift, Load, compare_loads, drift_of, load_of
from pgsweep.units import BLOCK_BYTES, Z90, format_bytes, format_percent

_UNLIKELY: Final = 0.1
"""In how many cases a prediction that is right may be called wrong."""


def verify(before: Path, after: Path, *, memory_bytes: int | None = None, seed: int = 0) -> VerifyResult:
    """Return whether the prediction from one recording holds in a later one of the same server.

    Args:
        before: evidence recorded before the change.
        after: evidence recorded after it.
        memory_bytes: what pool and page cache share after the change; as before by default.
        seed: of all draws.

    Raises:
        EvidenceError: evidence cannot be read.
        UsageError: the two are not of the same database, or are the same recording.
    """
    first, second = _open(before), _open(after)
    _check_same(first, second)
    if first.meta == second.meta and (first.meta.started_at or before.resolve() == after.resolve()):
        raise UsageError(
            f"`{before}` and `{after}` are the same recording",
            cause="what it predicts of itself says nothing of a prediction",
            hint="record again after the change: leave out --after",
        )
    was, now = Observation(first), Observation(second)
    size, today = now.server.pool_bytes, was.server.pool_bytes
    huge_pages = _other_huge_pages(was, now)
    prediction = _predicted(before, sorted({size, today}), memory_bytes, huge_pages, seed)
    loads = load_of(was), load_of(now)
    pace = effect_of_pace(was, now)
    values = _values(prediction, was, now, loads, pace)
    values, not_compared = comparable(values, was, now, loads[1], huge_pages)
    workload = compare_loads(*loads)
    values, verdict, reasons = _judged(
        values,
        prediction,
        was,
        now,
        load_changed=any(one.changed for one in workload),
        drift=None if size == today else drift_of(*loads),
    )
    if any(one.name == THROUGHPUT for one in values):
        reasons += pace.reasons
    reasons += not_compared
    for when, evidence in (("before", first), ("after", second)):
        reasons += [f"the recording {when} the change: {warning}" for warning in evidence.warnings]
    reasons += _unknown_cluster(first.meta, second.meta)
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


def check_server(conninfo: str, before: Path) -> list[str]:
    """Refuse before it is recorded what could not be verified afterwards.

    Returns:
        Why the prediction is refused, so that nothing will be known; nothing where it is not.

    Raises:
        EvidenceError: the evidence cannot be read, or nothing can be predicted from it.
        UsageError: the server is known not to be the one that evidence was recorded on, or it is another
            database.
        ConnectionFailed: it cannot be reached.
    """
    meta = _open(before).meta
    with connect(conninfo) as connection, explained():
        check_cluster(connection, meta, before)
        here = read_server(connection)
    if meta.database != here.database or meta.server_version_num // 10000 != here.version_num // 10000:
        raise _other_database(f"`{before}` and this server", meta, here)
    verdict = predict(before).verdict
    return verdict.sentences if verdict.level == "refused" else []


def _other_database(what: str, one: EvidenceMeta, other: EvidenceMeta | Server) -> UsageError:
    version = other.server_version if isinstance(other, EvidenceMeta) else other.version
    here = f"{other.database} of {version}"
    return UsageError(
        f"{what} are not of the same database",
        cause=f"database {one.database} of PostgreSQL {one.server_version}, and {here}",
        hint="name the evidence that was recorded on this database before the change",
    )


def _open(path: Path) -> Evidence:
    if path.is_file():
        check_trace(path)
        raise UsageError(
            f"`{path}` is a trace without its server", hint="name folders that `pgsweep record` wrote"
        )
    return Evidence.open(path)


def _check_same(first: Evidence, second: Evidence) -> None:
    one, other = first.meta, second.meta
    if one.database != other.database or one.server_version_num // 10000 != other.server_version_num // 10000:
        raise _other_database(f"`{first.path}` and `{second.path}`", one, other)
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


def _unknown_cluster(before: EvidenceMeta, after: EvidenceMeta) -> list[str]:
    """Return a warning if it is not known whether both are of the same cluster."""
    if before.system_identifier and after.system_identifier:
        return []
    which = "the first recording does" if after.system_identifier else "the second recording does"
    if not before.system_identifier and not after.system_identifier:
        which = "they do"
    return [
        f"whether both recordings are of the same server was not checked: {which} not have the cluster's "
        "system identifier"
    ]


def _other_huge_pages(before: Observation, after: Observation) -> HugePagesNow:
    """Return whether shared memory lies in huge pages now, where that has changed; else None."""
    was, now = (MemoryFacts.of(one.server) for one in (before, after))
    if was is None or now is None or was.huge_pages == now.huge_pages:
        return None
    return "on" if now.huge_pages else "off"


def _predicted(
    before: Path, sizes_bytes: list[int], memory_bytes: int | None, huge_pages: HugePagesNow, seed: int
) -> PredictResult:
    """Return what was predicted, with the huge pages that there are now."""
    prediction = predict(
        before,
        sizes_bytes=sizes_bytes,
        memory_bytes=memory_bytes,
        what_if=[] if huge_pages is None else [f"huge_pages {huge_pages}"],
        seed=seed,
    )
    changed = prediction.changed
    if changed is None:
        return prediction
    return msgspec.structs.replace(
        prediction, points=changed.points, memory=changed.memory, verdict=changed.verdict
    )


def _judged(
    values: list[VerifiedValue],
    prediction: PredictResult,
    before: Observation,
    after: Observation,
    *,
    load_changed: bool,
    drift: Drift | None,
) -> tuple[list[VerifiedValue], VerifyVerdict, list[str]]:
    """Return each value with its verdict, the verdict on the whole, and why that is said.

    Args:
        values: that are compared.
        prediction: of the size after the change.
        before, after: the recordings.
        load_changed: beyond what counts as the same load.
        drift: of a load that counts as the same; None where shared_buffers is the same.
    """

    def all_are(
        verdict: VerifyVerdict, why: list[str]
    ) -> tuple[list[VerifiedValue], VerifyVerdict, list[str]]:
        return [msgspec.structs.replace(one, verdict=verdict) for one in values], verdict, why

    if not values:
        return all_are("not known", prediction.verdict.sentences or ["nothing is predicted for this size"])
    if why := unsettled(prediction, after):
        return all_are("not known", [why])
    outside = [one for one in values if not one.within]
    if load_changed:
        held = "the prediction applies to the earlier load only"
        if not outside:
            held = "all measured values are within their intervals nevertheless"
        return all_are(
            "workload changed", [f"the load has changed, so the prediction cannot be judged; {held}"]
        )
    wrong = [one for one in outside if not _within_together(one, len(values))]
    moved = _moved(wrong, len(values), drift)
    cold, fresh = filling(before.server, after.server, values), just_filled(after)
    judged, reasons = _each(values, wrong, cold, fresh, moved)
    found = [one.verdict for one in judged]
    if "not as predicted" in found:
        names = ", ".join(one.name for one in judged if one.verdict == "not as predicted")
        return judged, "not as predicted", [f"outside the interval: {names}", *reasons]
    if moved or "as predicted" not in found:
        return judged, "not known", reasons
    near = ", ".join(one.name for one in outside if one not in wrong)
    if near:
        reasons = [
            "outside its 90% interval, but not so far that it is unlikely for one of "
            f"{len(values)} values: {near}",
            *reasons,
        ]
    return judged, "as predicted", reasons


def _moved(wrong: list[VerifiedValue], count: int, drift: Drift | None) -> dict[str, str]:
    """Return why a value that lies outside says nothing of the prediction, by its name: the load differs."""
    if drift is None:
        why = (
            "the load differs: shared_buffers is the same in both recordings, so the difference is the load's"
        )
        return dict.fromkeys((one.name for one in wrong), why)
    found = {}
    for one in wrong:
        low, high = one.low * drift.low, one.high * drift.high
        wider = msgspec.structs.replace(one, low=low, high=high)
        if one.name != THROUGHPUT and _within_together(wider, count):
            found[one.name] = (
                f"the load differs between the recordings, which alone makes {format_percent(drift.low)} to "
                f"{format_percent(drift.high)} of what is predicted: {one.name}"
            )
    return found


def _each(
    values: list[VerifiedValue],
    wrong: list[VerifiedValue],
    cold: str | None,
    fresh: str | None,
    moved: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[VerifiedValue], list[str]]:
    """Return the values with a verdict each, and why some are not known.

    Args:
        wrong: those of them that lie outside.
        cold: the page cache was filling, which changes what depends on it and not the misses of the pool.
        fresh: the pool had just been filled, after which its misses swing.
        moved: by the name of a value, that the load itself explains it.
    """
    judged, reasons = [], []
    for one in values:
        verdict: VerifyVerdict = "not as predicted" if one in wrong else "as predicted"
        why = cold if one.name in BEHIND_THE_POOL else None
        why = why or ((fresh or moved.get(one.name)) if one in wrong else None)
        if why is not None:
            verdict = "not known"
            reasons += [] if why in reasons else [why]
        judged.append(msgspec.structs.replace(one, verdict=verdict))
    return judged, reasons


def _within_together(value: VerifiedValue, count: int) -> bool:
    """Return whether a value lies in an interval with which all of so many do in nine of ten cases.

    Each may lie outside in a tenth of the cases, divided by their number (Bonferroni's inequality).
    """
    wider = NormalDist().inv_cdf(1 - _UNLIKELY / 2 / count) / Z90
    margin = Z90 * value.measured_error
    low, high = value.low - value.predicted - margin, value.high - value.predicted + margin
    return low * wider <= value.measured - value.predicted <= high * wider


class _OfSize(Protocol):
    @property
    def shared_buffers_bytes(self) -> int:
        """The size."""


Point = TypeVar("Point", bound=_OfSize)


def _at(size_bytes: int, points: Sequence[Point]) -> Point | None:
    """Return what is predicted for a size, if it is."""
    return next((one for one in points if one.shared_buffers_bytes == size_bytes), None)


def _values(
    prediction: PredictResult,
    before: Observation,
    after: Observation,
    loads: tuple[Load, Load],
    pace: PaceEffect,
) -> list[VerifiedValue]:
    """Return all that is predicted for the new size and was measured."""
    size, (was, now) = after.server.pool_bytes, loads
    accesses = now.totals.hits + now.totals.misses
    point = _at(size, prediction.points)
    if point is None or accesses <= 0:
        return []
    observed, memory = prediction.observed, prediction.memory
    values = [
        _value(
            "miss ratio of the pool",
            "ratio",
            observed.miss_ratio,
            (point.miss_ratio, point.low, point.high),
            now.totals.misses / accesses,
            miss_error(now.totals),
        )
    ]
    disk = None if memory is None else _at(size, memory.points)
    read, read_before = disk_bytes_per_second(after), disk_bytes_per_second(before)
    if disk is not None and read is not None:
        rate = observed.accesses / max(observed.seconds, 1e-9)
        predicted = (
            disk.disk_bytes_per_second / rate,
            disk.disk_bytes_low / rate,
            disk.disk_bytes_high / rate,
        )
        values.append(
            _value(
                FROM_DISK,
                "bytes per access",
                None if read_before is None else read_before / rate,
                predicted,
                read / now.accesses_per_second,
                # Reads are as random as misses are; what is read at once counts as one block at least.
                math.sqrt(read * now.totals.seconds * BLOCK_BYTES) / accesses,
            )
        )
    ratio = None if memory is None or memory.throughput is None else _at(size, memory.throughput.points)
    if ratio is not None and was.transactions_per_second > 0:
        found = now.transactions_per_second / was.transactions_per_second
        values.append(
            _value(
                THROUGHPUT,
                "of before",
                1.0,
                (ratio.ratio * pace.factor, ratio.low * pace.factor, ratio.high * pace.factor),
                found,
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
