"""The same accesses in another order: each session's accesses stay, their times relative to others change.

A server with another pool waits at other times. Each session makes its accesses in its own order, a little
sooner or later than in the trace, and what one session reads for another changes with it. By how much the
ratio of misses depends on that is found by replaying the trace in such orders.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pgsweep.sizing.traces.accesses import DROP, Trace, stable_order

_SHIFT_SECONDS = 0.2
"""Standard deviation of a session's delay: some waits for reads, or a turn of a busy processor. Two runs of
the same transactions on one machine differ by this much, and more where it is overloaded."""

_KNOT_SECONDS = 1.0
"""A delay comes and goes in about this time."""

_MOST_KNOTS = 4096
_MOST_DELAYS = 4_000_000


def reorder_sessions(trace: Trace, random: np.random.Generator) -> Trace | None:
    """Return the trace with each session's accesses shifted in time; None where only one session accesses.

    Pages that are made or dropped keep their times, so that none is read before it is there.
    """
    sessions, counts = np.unique(trace.backend, return_counts=True)
    if len(sessions) < 2 or not len(trace.pages):
        return None
    end = max(trace.duration_seconds, float(trace.seconds[-1]), 1e-3)
    most = min(_MOST_KNOTS, _MOST_DELAYS // len(sessions) + 1)
    knots = int(np.clip(np.ceil(end / _KNOT_SECONDS), 1, most)) + 1
    delays = random.normal(0.0, _SHIFT_SECONDS, (len(sessions), knots))
    at = np.linspace(0.0, end, knots)
    moved = trace.seconds.copy()
    # A session at a time: columns for all of them at once would take more memory than the trace.
    by_session = np.split(stable_order(trace.backend), np.cumsum(counts)[:-1])
    for rows, delay in zip(by_session, delays, strict=True):
        moved[rows] += np.interp(trace.seconds[rows], at, delay)
    del by_session
    comes_or_goes = trace.new_page.copy()
    comes_or_goes[trace.pages[(trace.flags & DROP) > 0]] = True
    stays = comes_or_goes[trace.pages]
    moved[stays] = trace.seconds[stays]
    order = np.argsort(moved, kind="stable")
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    access = position[trace.owner_access.astype(np.int64)]
    owned = np.argsort(access)
    return replace(
        trace,
        **trace.of_rows(order) | {"seconds": np.clip(moved[order], 0.0, end)},
        owner_access=access[owned].astype(np.uint64),
        owner=trace.owner[owned],
    )
