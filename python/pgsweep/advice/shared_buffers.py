"""Advice on shared_buffers: another size, or to leave it as it is.

A change needs a restart, which empties the pool, so it must be certain to pay. Where the throughput is
predicted, it is decided by that: it rises by 2% or more, with a 90% interval above 0. Elsewhere the time
that sessions wait for reads stands for it: the interval of what is saved lies above 0, and it is 5% at
least. Of the sizes that gain nearly as much as the best, the one nearest to today's is taken. In all other
cases the advice is to leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pgsweep.advice.candidates import LEAST_ADVISED_BYTES
from pgsweep.advice.reads import Basis, gain_of, throughput_gain
from pgsweep.advice.situation import Situation, rounded_down
from pgsweep.advice.summary import THROUGHPUT
from pgsweep.commands import on_server
from pgsweep.records.advice import Action, AdvisedSetting, Gain, Kind, ReadsPoint
from pgsweep.sizing.throughput.read_times import COPY_RANGE
from pgsweep.units import (
    as_setting,
    format_bytes,
    format_estimate,
    format_percent,
    format_plain,
    format_rate,
)

LEAST_GAIN: Final = 0.05
"""The least share of the waiting for reads whose saving is worth a restart; assumed."""

LEAST_THROUGHPUT: Final = 0.02

LEAST_WAIT: Final = 0.01
"""With less than this many seconds of waiting in each second nobody would notice a gain."""

_SLOWER_DISK: Final = 2.0
"""How many times as long as assumed a disk read may take, where nothing is said to be gained."""

_NEARLY: Final = 0.9
_WORTH_SAYING: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The size advised, and the advice; where it is today's, why.

    Attributes:
        size_bytes: shared_buffers from now on.
        advice: what to do, with the reason.
    """

    size_bytes: int
    advice: AdvisedSetting


def decide_size(situation: Situation, points: list[ReadsPoint], basis: Basis) -> Decision:
    """Return the size to set.

    Args:
        situation: what is known.
        points: what reads cost at the candidates.
        basis: how disk reads are known.
    """
    today = situation.today_bytes
    now = next((point for point in points if point.shared_buffers_bytes == today), None)
    if situation.prediction.verdict.level == "refused":
        why = "; ".join(situation.prediction.verdict.sentences[:2])
        why = f"no prediction is possible: {why}. {_to_record(situation)}"
        return _left(situation, why, "unknown", "measured")
    if situation.no_page_cache is not None:
        why = (
            f"behind the pool of {situation.no_page_cache} there is no page cache of Linux, so what a "
            "miss costs "
            "is not known"
        )
        return _left(situation, why, "unknown", "measured")
    if now is None:
        return _left(situation, "nothing is known of today's size", "unknown", "measured")
    costs = situation.costs
    most_wait = now.wait_high + (COPY_RANGE[1] - 1) * now.misses_high * costs.copy_seconds
    taken = ""
    if costs.disk_read_kind == "assumed":
        slow = _SLOWER_DISK * costs.disk_read_seconds
        most_wait += now.disk_reads_high * (slow - costs.disk_read_seconds)
        taken = f", if one from disk takes no more than {format_plain(round(slow * 1e6))} µs"
    if most_wait < LEAST_WAIT:
        wait = format_plain(round(most_wait * 1000, 2))
        why = (
            f"all sessions together wait at most {wait} ms in a second for reads{taken}: there is nothing to "
            f"gain{_removable(situation)}"
        )
        return _left(situation, why, "leave", _kind(basis))
    if basis == "unknown":
        why = (
            f"what comes from disk is not known: {format_rate(now.misses_per_second)} misses a second "
            "may be served by the page cache or by the disk. Name the memory of the server's host with "
            "--ram, or record there"
        )
        return _left(situation, why, "leave", "measured")
    gains, least = gains_by_size(now, points)
    certain = {size: gain for size, gain in gains.items() if gain.low > 0 and gain.value >= least}
    fitting = {size: gain for size, gain in certain.items() if _fits(situation, size)}
    if fitting:
        best = max(gain.value for gain in fitting.values())
        size = min(
            (size for size, gain in fitting.items() if gain.value >= best * _NEARLY),
            key=lambda size: max(size, today) / min(size, today),
        )
        then = next(point for point in points if point.shared_buffers_bytes == size)
        return Decision(size_bytes=size, advice=_set(situation, now, then, gain_of(now, then), basis))
    why = _why_not(situation, gains, certain, basis)
    return _left(situation, why, "leave", _kind(basis))


def gains_by_size(now: ReadsPoint, points: Sequence[ReadsPoint]) -> tuple[dict[int, Gain], float]:
    """Return what each size that may be advised gains, and the least gain that is worth a restart.

    Args:
        now: what reads cost today.
        points: at all sizes; those that are considered only for a rule of thumb are not advised.
    """
    round_ones = [
        point
        for point in points
        if point is not now
        and point.shared_buffers_bytes >= LEAST_ADVISED_BYTES
        and point.shared_buffers_bytes == rounded_down(point.shared_buffers_bytes)
    ]
    rises = {p.shared_buffers_bytes: gain for p in round_ones if (gain := throughput_gain(p)) is not None}
    if rises:
        return rises, LEAST_THROUGHPUT
    return {point.shared_buffers_bytes: gain_of(now, point) for point in round_ones}, LEAST_GAIN


def _to_record(situation: Situation) -> str:
    """Return what to record where the evidence allows no prediction."""
    if situation.prediction.source == "trace":
        longer = on_server("pgsweep record", "--source trace --for 2m")
        return f"Record for longer, under the usual load: {longer}"
    record, trace = on_server("pgsweep record"), on_server("pgsweep record", "--source trace --for 40s")
    return (
        f"Record under the usual load until there is enough ({record}), or, as root on the server's host, "
        f"every access ({trace})"
    )


def _kind(basis: Basis) -> Kind:
    return "predicted" if basis == "simulated" else "assumed"


def _fits(situation: Situation, size: int) -> bool:
    """Return whether the memory still suffices for connections like today's."""
    budget = situation.budget
    if budget is None or size <= situation.today_bytes:
        return True
    return budget.page_cache_bytes[1] > size - situation.today_bytes


def _why_not(situation: Situation, gains: dict[int, Gain], certain: dict[int, Gain], basis: Basis) -> str:
    if certain:
        size = max(certain, key=lambda size: certain[size].value)
        return (
            f"{format_bytes(size)} would pay, but the memory would then not suffice for max_connections "
            "connections like today's"
        )
    if not gains:
        return "no other size is possible within the memory"
    size = max(gains, key=lambda size: gains[size].value)
    gain = gains[size]
    if gain.of == THROUGHPUT:
        low, high = (format_percent(bound, sign=True) for bound in (gain.low, gain.high))
        change = f"{low} to {high}{_removable(situation)}"
        return (
            "no size is both certain to raise the throughput and expected to raise it by at least "
            f"{format_percent(LEAST_THROUGHPUT)}; the best, {format_bytes(size)}, would change it by {change}"
        )
    if gain.value < LEAST_GAIN:
        return (
            f"no size is expected to save {format_percent(LEAST_GAIN)} of the time that sessions wait for "
            f"reads; the best, {format_bytes(size)}, would save "
            f"{format_estimate(max(gain.value, 0), gain.low, gain.high, _tenths)}{_removable(situation)}"
        )
    how = "; disk reads are only bounded by snapshots" if basis == "bounded" else ""
    if situation.prediction.source != "trace":
        how += ": " if how else "; "
        how += "a trace, recorded as root on the server's host, would narrow it"
    return (
        f"the gain is not certain: {format_bytes(size)} would change the time that sessions wait for "
        f"reads by {format_percent(-gain.high, sign=True)} to {format_percent(-gain.low, sign=True)}{how}"
    )


def _tenths(ratio: float) -> str:
    return format_percent(ratio, 1)


def _removable(situation: Situation) -> str:
    calm = situation.prediction.no_eviction
    if calm is None or not calm.removable_bytes:
        return ""
    removable = format_bytes(calm.removable_bytes)
    return f". While this was recorded {removable} of shared_buffers held no page, and could be taken away"


def _left(situation: Situation, why: str, action: Action, kind: Kind) -> Decision:
    today = situation.today_bytes
    advice = AdvisedSetting(
        name="shared_buffers",
        where="server",
        today=as_setting(today),
        value=None,
        action=action,
        kind=kind,
        reason=why,
    )
    return Decision(size_bytes=today, advice=advice)


def _set(situation: Situation, now: ReadsPoint, then: ReadsPoint, gain: Gain, basis: Basis) -> AdvisedSetting:
    fewer = format_estimate(then.misses_per_second, then.misses_low, then.misses_high)
    misses = f"misses from {format_rate(now.misses_per_second)} to {fewer} a second"
    disk = f"disk reads from {_disk(now, basis)} to {_disk(then, basis)} a second"
    better = throughput_gain(then)
    less = better is not None and gain.value >= _WORTH_SAYING and gain.low > 0
    saved = format_estimate(gain.value, gain.low, gain.high, format_percent)
    waiting = f", {saved} less time waiting for reads" if less else ""
    return AdvisedSetting(
        name="shared_buffers",
        where="server",
        today=as_setting(situation.today_bytes),
        value=as_setting(then.shared_buffers_bytes),
        action="set",
        kind=_kind(basis),
        reason=f"{misses}, {disk}{waiting}",
        gain=better or gain,
        takes_effect="restart",
        undo=undo_of("shared_buffers", as_setting(situation.today_bytes)),
    )


def _disk(point: ReadsPoint, basis: Basis) -> str:
    if basis == "simulated":
        return format_estimate(point.disk_reads_per_second, point.disk_reads_low, point.disk_reads_high)
    low, high = format_rate(point.disk_reads_low), format_rate(point.disk_reads_high)
    return low if low == high else f"{low}..{high}"


def undo_of(name: str, today: str) -> str:
    """Return the statement that puts a setting back."""
    return f"ALTER SYSTEM SET {name} = '{today}'"
