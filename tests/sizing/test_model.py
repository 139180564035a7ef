"""The law of a page and its inversion, against simulation by the pool itself."""

from __future__ import annotations

import numpy as np
import pytest

from pgsweep import _native
from pgsweep.sizing.snapshots.rates import GRID, SINGLE, fit_batch, fit_rates, likelihoods


def zipf_trace(pages: int, exponent: float, accesses: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    weights = np.arange(1, pages + 1) ** -exponent
    return random.permutation(pages)[
        np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(accesses))
    ].astype(np.uint32)


@pytest.mark.parametrize("exponent", [0.6, 0.9, 1.2])
def test_law_predicts_the_misses_of_the_simulated_pool(exponent: float) -> None:
    pages, accesses = 20_000, 2_000_000
    trace = zipf_trace(pages, exponent, accesses, 1)
    weights = np.arange(1, pages + 1) ** -exponent
    rates = weights / weights.sum()
    passes = np.geomspace(1, 1e8, 160)
    law = _native.clock_law((rates[:, None] * passes).ravel(), SINGLE)
    absent = law[:, 0].reshape(pages, -1).T
    for blocks in (500, 2_000, 8_000):
        counts = _native.replay(
            trace,
            [blocks],
            _native.Rules(18),
            windows=np.array([accesses // 4, accesses], dtype=np.uint64),
        )
        simulated = float(counts["misses"][0, 0] / counts["accesses"][0])
        one_pass = np.interp(blocks, (1 - absent).sum(axis=1), np.arange(len(passes)))
        predicted = float(np.interp(one_pass, np.arange(len(passes)), absent @ rates))
        assert predicted == pytest.approx(simulated, abs=1.5e-3)


def test_batch_and_rates_are_found_again() -> None:
    random = np.random.default_rng(3)
    batch = np.array([0.3, 0.5, 0.2, 0.0, 0.0])
    rates = random.choice([0.05, 0.5, 3.0], size=4000, p=[0.6, 0.3, 0.1])
    law = _native.clock_law(rates, batch)
    law = np.maximum(law, 0) / np.maximum(law, 0).sum(axis=1, keepdims=True)
    counts = np.array([random.multinomial(15, p) for p in law], dtype=np.float64)
    pages = np.ones(len(counts))
    found = fit_batch(counts, pages, random)
    assert found == pytest.approx(batch, abs=0.05)
    like, _ = likelihoods(counts, found)
    weights = fit_rates(like, pages, found).pages / pages.sum()
    assert float(weights @ GRID) == pytest.approx(float(rates.mean()), rel=0.05)
    cold = float(weights @ (GRID < 0.2))
    assert cold == pytest.approx(0.6, abs=0.03)


def test_pages_visited_equally_often_between_two_points_of_the_grid_have_single_accesses() -> None:
    """The grid itself fits them badly, and better with a wrong batch law."""
    random = np.random.default_rng(5)
    between = float(np.sqrt(GRID[73] * GRID[74]))
    law = np.maximum(_native.clock_law(np.array([between]), SINGLE)[0], 0)
    counts = random.multinomial(25, law / law.sum(), size=360).astype(np.float64)
    assert fit_batch(counts, np.ones(len(counts)), random).tolist() == SINGLE.tolist()


@pytest.mark.parametrize("mean", [1.4, 2.4, 4.0])
def test_batches_of_zipf_pages_are_found_whatever_their_length(mean: float) -> None:
    random = np.random.default_rng(7)
    goes_on = 1 - 1 / mean
    batch = np.append((1 - goes_on) * goes_on ** np.arange(4), goes_on**4)
    rates: np.ndarray = (30.0 / np.arange(1, 2001) ** 0.95).astype(np.float64)
    law = np.maximum(_native.clock_law(rates, batch), 0)
    counts = np.array([random.multinomial(25, p / p.sum()) for p in law], dtype=np.float64)
    found = fit_batch(counts, np.ones(len(counts)), random)
    assert float(found @ np.arange(1, 6)) == pytest.approx(float(batch @ np.arange(1, 6)), rel=0.06)


def test_laws_are_probabilities_at_every_rate() -> None:
    for batch in (SINGLE, np.array([0, 0, 0, 0, 1.0]), np.full(5, 0.2)):
        law = _native.clock_law(np.geomspace(1e-9, 1e9, 400), batch)
        assert np.all(law >= 0)
        assert law.sum(axis=1) == pytest.approx(1.0, abs=1e-9)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="rates"):
        _native.clock_law(np.array([0.0]), SINGLE)
    with pytest.raises(ValueError, match="batch"):
        _native.clock_law(np.array([1.0]), np.array([0.5, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="multiplicity"):
        _native.mixture_weights(np.ones((3, 2)), np.ones(2))


def test_pages_that_scans_visit_need_a_rate_and_a_pass_each() -> None:
    first, rates, passes, gaps = np.ones(3), np.ones(3), np.full(3, 5.0), np.array([2.0, 3.0])

    def drawn(rates: np.ndarray, passes: np.ndarray, batch: np.ndarray = SINGLE) -> list[int]:
        states = _native.states_before(
            first, rates, passes, gaps, batch, rounds=3, duration_seconds=9.0, seed=2**63 - 1
        )
        return list(states.tolist())

    assert all(0 <= state <= 6 for state in drawn(rates, passes))
    assert drawn(np.zeros(3), np.full(3, np.inf)) == [6, 6, 6]
    for wrong in ((rates[:2], passes), (rates, passes[:2]), (rates, passes * 0), (rates, passes * np.nan)):
        with pytest.raises(ValueError, match="clock pass"):
            drawn(*wrong)
    with pytest.raises(ValueError, match="sum to 1"):
        drawn(rates, passes, SINGLE * 2)
