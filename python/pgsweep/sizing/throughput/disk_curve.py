"""How long a read from disk takes by the number of reads in flight, measured at a few depths.

The recording reads while the server works, so the server's reads are in flight besides, a number that varies
and that grows where the disk gets slower. The latency with a fixed number in flight is computed: that with
which the loop of sessions, and the recording's reads beside it, gives the latencies that were measured. It
begins with these, at the mean depth, and is corrected a fixed number of times by what the loop makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.records.prediction import DiskLatency
from pgsweep.sizing.throughput.closed_loop import ClosedLoop, Station
from pgsweep.units import Z90

_LEVEL: Final = 0.15
"""Where the reads per second grow by less than this power of the depth, the device has levelled off."""

_FLAT: Final = 1e-9
_CORRECTIONS: Final = 8
_LIKELY_BELOW: Final = 0.5

CURVE_ENDS: Final = ((1, 2), (3, 4))
"""Which of the curves are ends of the same cause."""

_Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ProbedLoad:
    """The sessions beside which the latencies were measured.

    Attributes:
        sessions: in the loop.
        waited_seconds: that a transaction waits for the disk.
        loop: all else that a transaction takes.
    """

    sessions: float
    waited_seconds: float
    loop: ClosedLoop

    def depth(self, times: float) -> float:
        """Return the sessions at the disk where each waits that many times as long."""
        waited = self.waited_seconds * times
        slower = replace(self.loop, delay_seconds=self.loop.delay_seconds + waited)
        return waited * slower.throughput(self.sessions)


@dataclass(frozen=True)
class DiskCurves:
    """What the latencies allow.

    Attributes:
        curves: how many times as long a read takes with 1, 2, ... in flight as with one: the likely curve,
            and ends of it by cause (`CURVE_ENDS`); None where it takes as long at each depth.
        most_reads_per_second: where the disk levelled off.
    """

    curves: list[_Numbers | None]
    most_reads_per_second: float | None


def curves_of(latencies: Sequence[DiskLatency], load: ProbedLoad, most: int | None = None) -> DiskCurves:
    """Return the curves; where nothing was measured a read takes as long at each depth.

    Args:
        latencies: at two depths at least, or none; ascending by depth.
        load: beside which they were measured.
        most: reads in flight that the curves must know; one more than there are sessions by default.
    """
    if not latencies:
        return DiskCurves([None] * 5, None)
    most = math.floor(load.sessions) + 1 if most is None else most
    means = np.array([one.seconds for one in latencies])
    errors = np.array([one.error_seconds for one in latencies]) * Z90
    weights = [one.reads for one in latencies]
    depths, seconds = _alone(latencies, load, never_falling(means, weights))
    correction = seconds / means
    # The flattest and the steepest: the first latency and the others err in opposite directions.
    opposite = np.where(np.arange(len(means)) == 0, -errors, errors)
    ends = [
        (never_falling(np.maximum(measured, means / 10) * correction, weights), below)
        for measured, below in (
            (means, _LIKELY_BELOW),
            (means - opposite, _LIKELY_BELOW),
            (means + opposite, _LIKELY_BELOW),
            (means, 0.0),
            (means, 1.0),
        )
    ]
    curves = [seconds_by_depth(depths, values, most, below) for values, below in ends]
    relative = [curve / curve[0] for curve in curves]
    flat = [float(np.abs(curve - 1).max()) < _FLAT for curve in relative]
    return DiskCurves(
        [None if same else curve for curve, same in zip(relative, flat, strict=True)],
        limit_of(depths, ends[0][0]),
    )


def _alone(
    latencies: Sequence[DiskLatency], load: ProbedLoad, measured: _Numbers
) -> tuple[_Numbers, _Numbers]:
    """Return depths, the server's own reads included, and the latency with that number in flight."""
    probes = [one.depth for one in latencies]
    depths = np.array(
        [
            probe + load.depth(took / measured[0])
            for probe, took in zip(probes, measured.tolist(), strict=True)
        ]
    )
    seconds = measured
    if float(measured[-1] / measured[0] - 1) < _FLAT or not load.waited_seconds:
        return depths, seconds
    sessions = max(1, round(load.sessions))
    for _ in range(_CORRECTIONS):
        curve = seconds_by_depth(depths, seconds, sessions + max(probes), _LIKELY_BELOW)
        disk = load.loop.waiting(load.waited_seconds, curve / curve[0], load.sessions).disk
        assert disk is not None
        found = []
        for probe in probes:
            # With probes there, sessions share the disk with them: they are served as if that many more were.
            there = replace(
                load.loop,
                processors=max(1, round(load.loop.processors)),
                disk=Station(seconds=disk.seconds, slower=disk.slower[probe:]),
            ).sessions_at_disk(sessions)
            found.append(1 / float(np.sum(there / curve[probe - 1 : probe + sessions])))
        corrected = never_falling(seconds * measured / np.array(found), [1] * len(probes))
        # Nor do the reads per second fall as more are in flight: neighbours where they would are averaged.
        seconds = depths / never_falling(depths / corrected, [1] * len(probes))
    return depths, seconds


def seconds_by_depth(depths: _Numbers, seconds: _Numbers, most: int, below: float) -> _Numbers:
    """Return the latency with 1, 2, ..., `most` reads in flight.

    It is linear between the depths that are known. Beyond them it grows as between the last two; and where
    the device was seen to level off, as the depth: its reads per second are at most the most that were seen.
    They never fall as more are in flight.

    Args:
        depths: at which it is known, ascending, two at least.
        seconds: the latency there, never falling.
        most: number of reads in flight.
        below: how much shorter reads take with fewer in flight than at the first depth: from 0 (not at all)
            to 1 (by the least slope measured beyond it, since the curve bends upwards).
    """
    counts = np.arange(1, most + 1, dtype=float)
    found: _Numbers = np.interp(counts, depths, seconds)
    slopes = np.diff(seconds) / np.diff(depths)
    further, limit = counts > depths[-1], limit_of(depths, seconds)
    if limit is not None:
        found[further] = np.maximum(seconds[-1], counts[further] / limit)
    else:
        found[further] = seconds[-1] + slopes[-1] * (counts[further] - depths[-1])
    fewer = counts < depths[0]
    slope = float(((seconds[1:] - seconds[0]) / (depths[1:] - depths[0])).min())
    shorter = seconds[0] - below * slope * (depths[0] - counts[fewer])
    # Fewer reads are not served at a higher rate.
    found[fewer] = np.maximum(shorter, seconds[0] * counts[fewer] / depths[0])
    return counts * np.minimum.accumulate(found / counts)


def limit_of(depths: _Numbers, seconds: _Numbers) -> float | None:
    """Return the most reads per second that were seen; None where they still grew with the depth."""
    rates = depths / seconds
    growth = math.log(rates[-1] / rates[-2]) / math.log(depths[-1] / depths[-2])
    return float(rates.max()) if growth < _LEVEL else None


def never_falling(values: _Numbers, weights: Sequence[int]) -> _Numbers:
    """Return the values that never fall and are closest to these: neighbours that do are averaged."""
    groups: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights, strict=True):
        groups.append((value, float(weight), 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (one, some, few), (other, more, many) = groups[-2:]
            groups[-2:] = [((one * some + other * more) / (some + more), some + more, few + many)]
    return np.concatenate([np.full(count, value) for value, _, count in groups])
