"""Throughput of a closed loop of sessions, by exact mean value analysis.

Each of `sessions` thinks, then waits: for a processor, where it queues with the others, and for what delays
it without a queue (reads, locks, the client). The processors are one station with several servers:

    R(i) = D/k (1 + Q(i-1) + sum_{j=0}^{k-2} (k-1-j) p_j(i-1)),   X(i) = i / (Z + R(i)),   Q(i) = X(i) R(i)

with demand D, k processors and p_j the probability of j sessions there (Reiser and Lavenberg, Mean-value
analysis of closed multichain queuing networks, JACM 1980).
"""

from __future__ import annotations

import math


def throughput(sessions: float, *, delay_seconds: float, demand_seconds: float, processors: float) -> float:
    """Return transactions per second.

    Args:
        sessions: in the loop; a broken number lies between its neighbours.
        delay_seconds: of a transaction outside the processors.
        demand_seconds: processor time of a transaction.
        processors: that serve them; a broken number, where others use a part of them, likewise.
    """
    whole = math.floor(processors)
    fewer = _for_whole(sessions, delay_seconds, demand_seconds, whole) if whole else 0.0
    if whole == processors:
        return fewer
    more = _for_whole(sessions, delay_seconds, demand_seconds, whole + 1)
    return fewer + (more - fewer) * (processors - whole)


def _for_whole(sessions: float, delay: float, demand: float, processors: int) -> float:
    whole = math.floor(sessions)
    below, above = _exact(whole + 1, delay, demand, processors)
    return below + (above - below) * (sessions - whole)


def _exact(sessions: int, delay: float, demand: float, processors: int) -> tuple[float, float]:
    """Return the throughput with one session fewer, and with that many."""
    queue, before, now = 0.0, 0.0, 0.0
    busy = [1.0] + [0.0] * (processors - 1)
    for i in range(1, sessions + 1):
        idle = sum((processors - 1 - j) * busy[j] for j in range(processors - 1))
        # Where all processors are busy rounding can take this below what one transaction needs.
        response = max(demand, demand / processors * (1 + queue + idle))
        before, now = now, i / max(delay + response, 1e-12)
        queue = now * response
        after = [0.0] * processors
        for j in range(1, processors):
            after[j] = demand * now / j * busy[j - 1]
        used = demand * now + sum((processors - j) * after[j] for j in range(1, processors))
        after[0] = max(0.0, 1 - used / processors)
        busy = after
    return before, now


def delay_for(measured: float, *, sessions: float, demand_seconds: float, processors: float) -> float | None:
    """Return the delay with which the loop reaches a throughput; None where it cannot even without any."""
    if (
        throughput(sessions, delay_seconds=0.0, demand_seconds=demand_seconds, processors=processors)
        < measured
    ):
        return None
    low, high = 0.0, sessions / measured
    for _ in range(60):
        middle = (low + high) / 2
        found = throughput(
            sessions, delay_seconds=middle, demand_seconds=demand_seconds, processors=processors
        )
        low, high = (middle, high) if found > measured else (low, middle)
    return (low + high) / 2
