"""The search for the least value within bounds, against scipy's and against values that are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls

from pgsweep.sizing.snapshots.paths import nonnegative
from pgsweep.sizing.snapshots.search import least

Floats = NDArray[np.float64]


def valley(point: Floats) -> float:
    return float((5 * (point[1:] - point[:-1] ** 2) ** 2 + (1 - point[:-1]) ** 2).sum())


def test_the_least_value_is_found_where_it_lies_inside() -> None:
    found = least(valley, np.full(3, -0.5), np.full(3, -3.0), np.full(3, 3.0), evaluations=2000, gain=1e-12)
    assert valley(found) < 1e-2


def test_bounds_hold_and_what_they_hold_does_not_move() -> None:
    centre = np.array([2.0, -5.0, 0.3])
    low, high = np.array([-1.0, -2.0, -1.0]), np.array([1.0, 2.0, 1.0])
    asked: list[Floats] = []

    def cost(point: Floats) -> float:
        asked.append(point)
        return float((point - centre) ** 2 @ np.array([1.0, 30.0, 4.0]))

    found = least(cost, np.zeros(3), low, high, evaluations=200, gain=1e-12)
    assert np.allclose(found, [1.0, -2.0, 0.3], atol=2e-3)
    assert all(((low <= point) & (point <= high)).all() for point in asked)


def test_it_ends_after_about_as_many_evaluations_as_allowed() -> None:
    asked: list[Floats] = []

    def cost(point: Floats) -> float:
        asked.append(point)
        return valley(point)

    start, low, high = np.full(5, -1.0), np.full(5, -3.0), np.full(5, 3.0)
    found = least(cost, start, low, high, evaluations=60, gain=0.0)
    assert len(asked) <= 60 + 12 + 5
    assert valley(found) < valley(start)


def test_likelihoods_are_as_high_as_by_scipy() -> None:
    random = np.random.default_rng(7)
    for _ in range(20):
        counts, start = random.poisson(300, 6).astype(np.float64), random.normal(0, 1, 5)

        def cost(theta: Floats, counts: Floats = counts) -> float:
            logs = np.append(0.0, theta)
            return float(counts.sum() * np.log(np.exp(logs).sum()) - counts @ logs)

        low, high = np.full(5, -7.0), np.full(5, 4.0)
        found = least(cost, start, low, high, evaluations=160, gain=2e-7)
        known = minimize(cost, start, method="L-BFGS-B", bounds=[(-7.0, 4.0)] * 5)
        assert cost(found) < known.fun + 0.05


def test_the_nearest_without_negative_parts_is_as_by_scipy() -> None:
    random = np.random.default_rng(3)
    for _ in range(30):
        matrix, wanted = random.random((6, 5)), random.normal(0.3, 0.4, 6)
        found = nonnegative(matrix, wanted)
        assert np.allclose(found, nnls(matrix, wanted)[0], atol=1e-9)
