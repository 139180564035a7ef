"""The same accesses in another order: what sessions do stays, when they do it beside one another does not.

A server with another pool waits at other moments. Each session makes its accesses in its own order, a little
sooner or later than in the trace, and what one session reads for another changes with it. By how much the
ratio of misses depends on that is found by replaying the trace in such orders.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pgsweep.sizing.inference.accesses import DROP, Trace

_SHIFT_SECONDS = 0.2
"""Standard deviation of a session's delay: some waits for reads, or a turn of a busy processor. Two runs of
the same transactions on one machine differ by so much, and more where it is overloaded."""

_KNOT_SECONDS = 1.0
"""A delay comes and goes in about this time."""

_MOST_KNOTS = 4096


def in_another_order(trace: Trace, random: np.random.Generator) -> Trace | None:
    """Return the trace with each session's accesses shifted in time; None where only one session accesses.

    Pages that are made or dropped keep their moments, so that none is read before it is there.
    """
    sessions, session = np.unique(trace.backend, return_inverse=True)
    if len(sessions) < 2 or not len(trace.pages):
        return None
    end = max(trace.duration_seconds, float(trace.seconds[-1]), 1e-3)
    knots = int(np.clip(np.ceil(end / _KNOT_SECONDS), 1, _MOST_KNOTS)) + 1
    delays = random.normal(0.0, _SHIFT_SECONDS, (len(sessions), knots))
    place = trace.seconds / end * (knots - 1)
    before = np.minimum(place.astype(np.int64), knots - 2)
    share = place - before
    chosen = session.ravel()
    delay = delays[chosen, before] * (1 - share) + delays[chosen, before + 1] * share
    comes_or_goes = trace.new_page.copy()
    comes_or_goes[trace.pages[(trace.flags & DROP) > 0]] = True
    moved = np.where(comes_or_goes[trace.pages], trace.seconds, trace.seconds + delay)
    order = np.argsort(moved, kind="stable")
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    access = position[trace.owner_access.astype(np.int64)]
    owned = np.argsort(access)
    return replace(
        trace,
        pages=trace.pages[order],
        seconds=np.clip(moved[order], 0.0, end),
        flags=trace.flags[order],
        backend=trace.backend[order],
        owner_access=access[owned].astype(np.uint64),
        owner=trace.owner[owned],
        counted=trace.counted[order],
        missed=trace.missed[order],
    )
