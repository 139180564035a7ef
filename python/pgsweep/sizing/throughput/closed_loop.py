"""Throughput of a closed loop of sessions, exactly.

Each session thinks, then waits: for a processor, where it queues with the others; for the disk, which may
answer slower the more of them wait there; and for what delays it without a queue (locks, the client). Such a
network has product form (Baskett, Chandy, Muntz and Palacios, JACM 1975). With delay Z, demand D, k
processors, and V l(j) seconds at the disk where j sessions are,

    G(n) = sum over a + b + c = n of  Z^a / a!  *  prod_{i<=b} D / min(i, k)  *  prod_{i<=c} V l(i) / i
    X(n) = G(n-1) / G(n)

(Buzen, Computational algorithms for closed queueing networks, CACM 1973). It is what mean value analysis
computes, as a sum of positive terms: nothing cancels, where the recursion loses all digits with many sessions
at several busy processors. By Little's law j is the depth, so throughput and depth come together; no fixed
point is searched for. Where l is 1 throughout, the disk is a delay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

_SMALLEST: Final = 1e-40
_STEPS: Final = 50

_Weights: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Station:
    """The disk in the loop.

    Attributes:
        seconds: that a transaction would need of it, were no other there.
        slower: how much longer it takes with 1, 2, ... sessions there; up to one more than there are, and not
            so much that fewer are served in a second.
    """

    seconds: float
    slower: NDArray[np.float64]


@dataclass(frozen=True)
class Flow:
    """What goes through the loop.

    Attributes:
        throughput: transactions per second.
        depth: sessions at the disk, on average.
    """

    throughput: float
    depth: float

    def interpolated(self, other: Flow, share: float) -> Flow:
        """Return what lies between."""
        return Flow(
            self.throughput + (other.throughput - self.throughput) * share,
            self.depth + (other.depth - self.depth) * share,
        )


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """What a transaction takes, and what serves it.

    Attributes:
        delay_seconds: of a transaction outside processors and disk.
        demand_seconds: processor time of a transaction.
        processors: that serve them; may be fractional, if others use a part of them.
        disk: None where it is a part of the delay.
    """

    delay_seconds: float
    demand_seconds: float
    processors: float
    disk: Station | None = None

    def throughput(self, sessions: float) -> float:
        """Return transactions per second; a fractional number of sessions is interpolated."""
        return self.flow(sessions).throughput

    def flow(self, sessions: float) -> Flow:
        """Return throughput and depth."""
        whole = math.floor(self.processors)
        fewer = self._flow(sessions, whole) if whole else Flow(0.0, 0.0)
        if whole == self.processors:
            return fewer
        return fewer.interpolated(self._flow(sessions, whole + 1), self.processors - whole)

    def delay_for(self, measured: float, sessions: float) -> float | None:
        """Return the delay with which it reaches a throughput; None where it cannot even without any."""
        if replace(self, delay_seconds=0.0).throughput(sessions) < measured:
            return None
        low, high = 0.0, sessions / measured
        for _ in range(60):
            middle = (low + high) / 2
            more = replace(self, delay_seconds=middle).throughput(sessions) > measured
            low, high = (middle, high) if more else (low, middle)
        return (low + high) / 2

    def waiting(self, waited_seconds: float, slower: NDArray[np.float64], sessions: float) -> ClosedLoop:
        """Return the loop with the disk at which a transaction waits for that time.

        The waiting grows with what a transaction needs of the disk, and is at least that; so the interval is
        halved a fixed number of times.
        """
        low, high = 0.0, waited_seconds
        for _ in range(_STEPS):
            middle = (low + high) / 2
            found = replace(self, disk=Station(seconds=middle, slower=slower)).flow(sessions)
            more = found.depth > waited_seconds * found.throughput
            low, high = (low, middle) if more else (middle, high)
        return replace(self, disk=Station(seconds=(low + high) / 2, slower=slower))

    def sessions_at_disk(self, sessions: int) -> NDArray[np.float64]:
        """Return how likely 0, 1, ..., all sessions are at the disk; the processors are a whole number."""
        disk, rest, _ = _places(sessions, self, int(self.processors))
        shares = disk * rest[::-1]
        found: NDArray[np.float64] = shares / shares.sum()
        return found

    def _flow(self, sessions: float, processors: int) -> Flow:
        whole = math.floor(sessions)
        disk, rest, unit = _places(whole + 1, self, processors)
        sums = [_ways(disk, rest, n) for n in (whole - 1, whole, whole + 1)]
        if self.disk is None:
            depths = [0.0, 0.0]
        else:
            depths = [_ways(disk * np.arange(whole + 2), rest, whole + n) / sums[n + 1] for n in (0, 1)]
        below, above = (Flow(sums[n] / sums[n + 1] / unit, depths[n]) for n in (0, 1))
        return below.interpolated(above, sessions - whole)


def _places(most: int, loop: ClosedLoop, processors: int) -> tuple[_Weights, _Weights, float]:
    """Return the weights of 0 to `most` sessions at the disk, and elsewhere, and their unit of time.

    Without a disk they are those of the delay, and of the processors.
    """
    station, delay, demand = loop.disk, loop.delay_seconds, loop.demand_seconds
    counts = np.arange(1, most + 1, dtype=float)
    servers = np.minimum(counts, processors)
    waits = np.zeros(most) if station is None else station.seconds * station.slower[:most] / counts
    # In units of about the time in which a transaction ends, no weight is too large or too small.
    alone = delay + demand + float(waits[0])
    unit = max(alone / most, demand / processors, float(waits.min()), 1e-12)
    delays, busy = _weights(delay / counts / unit), _weights(np.maximum(demand / unit, 1e-12) / servers)
    if station is None:
        return delays, busy, unit
    return _weights(waits / unit), _together(delays, busy, most), unit


def _ways(one: _Weights, other: _Weights, sessions: int) -> float:
    """Return the sum of the weights of all ways to divide the sessions."""
    return float(one[: sessions + 1] @ other[sessions::-1]) if sessions >= 0 else 0.0


def _weights(ratios: NDArray[np.float64]) -> _Weights:
    """Return the products of the first 0, 1, ... ratios, relative to the largest."""
    with np.errstate(divide="ignore"):
        logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    weights: _Weights = np.exp(logs - logs.max())
    return weights


def _together(one: _Weights, other: _Weights, most: int) -> _Weights:
    """Return the convolution up to a number, without what is too small to matter."""
    (first, left), (second, right) = (_core(each) for each in (one, other))
    found = np.zeros(most + 1)
    both = np.convolve(left, right)[: max(0, most + 1 - first - second)]
    found[first + second : first + second + len(both)] = both
    return found


def _core(weights: _Weights) -> tuple[int, _Weights]:
    """Return where the weights begin to matter, and those from there to where they no longer do."""
    matters = np.flatnonzero(weights > _SMALLEST)
    first, last = int(matters[0]), int(matters[-1])
    return first, weights[first : last + 1]
