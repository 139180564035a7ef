"""The chain over the steps of a clock pass as one matrix for each rate, as the native one is by rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.clock import COUNTS, Clock
from pgsweep.sizing.snapshots.paths import STEPS, _one_step

STATES = 1 + COUNTS * STEPS


def dense_step(batch: NDArray[np.float64], clock: Clock) -> NDArray[np.float64]:
    """Return the chain over one step: absent, then each count with each number of steps since the hand."""
    visits, turns = _one_step(batch, clock)
    state = 1 + np.arange(COUNTS) * STEPS
    chain = np.zeros((len(turns), STATES, STATES))
    for since in range(STEPS - 1):
        chain[:, (state + since)[:, None], (state + since + 1)[None, :]] = visits
    before, after = np.append(0, state + STEPS - 1), np.append(0, state)
    chain[:, before[:, None], after[None, :]] = turns
    return chain


def dense_rest(chain: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the law of the states long after the beginning, shape (grid, states)."""
    stays = np.eye(STATES) - chain.transpose(0, 2, 1)
    # It follows from all states but one, and from their sum.
    stays[:, 0, :] = 1.0
    return np.asarray(np.linalg.solve(stays, np.eye(STATES)[:, :1])[:, :, 0])
