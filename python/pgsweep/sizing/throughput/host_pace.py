"""How fast the host was in two recordings, and what that makes of the throughput.

On a host that is shared with others, as a virtual machine is, the same work may take a third longer a minute
later. A recording times the same work on each processor until its end; where it takes longer, so does what
the server does there. The loop of sessions as it was measured after the change says what that makes of the
throughput: much where sessions wait for processors, little where they wait for the disk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pgsweep.host.processor_pace import Pace
from pgsweep.records.prediction import DiskLatency
from pgsweep.sizing.throughput.closed_loop import ClosedLoop
from pgsweep.sizing.throughput.measured_loop import MeasuredLoop, Refused, measure_loop
from pgsweep.units import Z90, format_percent, format_plain

if TYPE_CHECKING:
    from pgsweep.sizing.observed import Observation, Server

_SAME: Final = 0.05
"""A smaller difference of a time means nothing: on a quiet host samples differ by as much."""

_SAID: Final = 0.01
"""A change of the throughput by less than this share is not reported."""


_START: Final = 0.03
"""By how much the throughput of a server differs from one start to the next, at the same size and pace, as a
standard deviation: 2.1 and 3.8% at two sizes in benchmarks/advise, eight starts each."""


@dataclass(frozen=True, kw_only=True)
class PaceEffect:
    """What another pace of the host makes of the throughput after the change.

    Attributes:
        factor: the throughput as a multiple of that at the pace before the change; 1 where it is not known.
        error: the standard error of the ratio that was measured, relative, by the pace and by what two starts
            of a server differ by.
        reasons: sentences, where the pace is another.
    """

    factor: float
    error: float
    reasons: list[str]


def effect_of_pace(before: Observation, after: Observation) -> PaceEffect:
    """Return what the host's pace in two recordings makes of the second one's throughput."""
    try:
        loop: MeasuredLoop | None = measure_loop(after)
    except Refused:
        loop = None
    copies = [one.server.copy_seconds for one in (before, after)]
    paces = paces_of(before.server, after.server)
    reasons: list[str] = []
    if loop is not None and paces is not None:
        factor, error = _processor_effect(loop, *paces)
        if abs(factor - 1) > _SAID:
            reasons.append(_taken_into_account(*paces, factor, error))
    else:
        factor = 1.0
        error = abs(copies[1] / copies[0] - 1) if copies[0] and copies[1] else 0.0
        if copies[0] and copies[1] and error > _SAME:
            reasons.append(_not_known(copies[0], copies[1], error))
    disk = 0.0
    if loop is not None:
        try:
            disk, reason = _disk_effect(loop, measure_loop(before).latencies)
            reasons += [] if reason is None else [reason]
        except Refused:
            pass
    return PaceEffect(factor=factor, error=math.hypot(error, disk, _START, _START), reasons=reasons)


def paces_of(before: Server, after: Server) -> tuple[Pace, Pace] | None:
    """Return how fast the processors were in two recordings; None where that cannot be compared."""
    if before.pace is None or after.pace is None or before.pace_by != after.pace_by:
        return None
    return before.pace, after.pace


def _processor_effect(loop: MeasuredLoop, before: Pace, after: Pace) -> tuple[float, float]:
    """Return the throughput as a multiple of that at the pace before, and the standard error of that."""
    longer = after.seconds / before.seconds
    error = math.hypot(*(one.error_seconds / one.seconds for one in (before, after)))
    factor, low, high = (1 / _if_work_took(loop, times / longer) for times in (1, 1 - error, 1 + error))
    return factor, abs(high - low) / 2


def _if_work_took(loop: MeasuredLoop, times: float, reads: float = 1.0) -> float:
    """Return the throughput, as a multiple of the measured one, if the same work took another time.

    Args:
        loop: that was measured.
        times: how many times as long a transaction takes of the processors, its client included where it runs
            on the host.
        reads: how many times as long it waits for reads.
    """
    for one in (loop.with_clients(), loop):
        delay = one.delay_seconds()
        if delay is None:
            continue
        waited = min(loop.read_seconds / loop.transactions_per_second, delay)
        then = ClosedLoop(
            delay_seconds=delay + waited * (reads - 1),
            demand_seconds=one.demand_seconds * times,
            processors=one.processors,
        ).throughput(one.sessions)
        return then / one.transactions_per_second
    # The processors alone do not allow what was measured, so they are the limit.
    return 1 / times


def _disk_effect(loop: MeasuredLoop, before: list[DiskLatency]) -> tuple[float, str | None]:
    """Return what reads that take longer or shorter than before make of the throughput, and the sentence."""
    known = {one.depth: one for one in before}
    both = [(known[one.depth], one) for one in loop.latencies if one.depth in known]
    if not both:
        return 0.0, None
    # Of the depths that were measured in both, the one nearest to the sessions that wait for reads.
    was, now = min(both, key=lambda pair: abs(math.log(pair[0].depth / max(loop.read_seconds, 1.0))))
    longer = now.seconds / was.seconds
    error = math.hypot(*(one.error_seconds / one.seconds for one in (was, now)))
    if abs(longer - 1) <= max(_SAME, Z90 * error):
        return 0.0, None
    found = abs(_if_work_took(loop, 1.0, 1 / longer) - 1)
    took, takes = (format_plain(round(one.seconds * 1e6)) for one in (was, now))
    return found, (
        f"a read from disk took {took} microseconds before the change and takes {takes} now, {was.depth} in "
        f"flight: for that alone the throughput is known to within {format_percent(Z90 * found)} only"
    )


def _taken_into_account(was: Pace, now: Pace, factor: float, error: float) -> str:
    longer = format_plain(round(now.seconds / was.seconds, 2))
    changed = f"{format_percent(abs(factor - 1))} {'more' if factor > 1 else 'less'}"
    return (
        f"the host itself runs {'faster' if now.seconds < was.seconds else 'slower'}: the same work took its "
        f"processors {longer} times as long as before the change. For that {changed} throughput is "
        f"predicted, known to within {format_percent(Z90 * error)}"
    )


def _not_known(was: float, now: float, error: float) -> str:
    took, takes = (format_plain(round(seconds * 1e6, 2)) for seconds in (was, now))
    return (
        f"a copy of a block took {took} microseconds of a processor before the change and takes {takes} now: "
        f"the host itself runs {'slower' if now > was else 'faster'}, so the throughput is known to within "
        f"{format_percent(Z90 * error)} only"
    )
