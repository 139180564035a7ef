"""Other replacement policies: the law, the simulated pool, and a prediction from its snapshots."""

from __future__ import annotations

import numpy as np
import pytest

from pgsweep import _native
from pgsweep.sizing.clock import USUAL, Clock
from pgsweep.sizing.snapshots.paths import STEPS
from pgsweep.sizing.snapshots.rates import GRID, SINGLE
from tests.fix_paths import dense_rest, dense_step
from tests.fix_pool import record, truth, zipf_pages

POLICIES = [(1, 1), (1, 0), (3, 1), (3, 2), (5, 1)]


@pytest.mark.parametrize(("usage_cap", "admission"), POLICIES)
def test_the_law_is_that_of_a_simulated_pool(usage_cap: int, admission: int) -> None:
    """Pages of three rates in one pool: how many are at each count, and what that says of their rates."""
    pages, buffers = 3000, 1500
    weights = np.repeat([1.0, 4.0, 16.0], pages // 3)
    random = np.random.default_rng(usage_cap * 10 + admission)
    accesses = random.choice(pages, 600_000, p=weights / weights.sum()).astype(np.uint32)
    rules = _native.Rules(18, usage_cap=usage_cap, admission=admission)
    clock = Clock.of(rules)
    assert (clock.usage_cap, clock.admission) == (usage_cap, admission)
    begin, times = 200_000, 40
    cuts = np.linspace(begin, len(accesses), times).astype(int)
    first = _native.replay_outcomes(accesses[:begin], buffers, rules)
    seen = np.zeros((3, 7))
    for cut in cuts.tolist():
        pool = _native.replay_outcomes(accesses[:cut], buffers, rules)
        kind, count = pool["buffer_pages"] // (pages // 3), pool["buffer_usage_counts"]
        np.add.at(seen, (kind, count + 1), 1 / times / (pages // 3))
    seen[:, 0] = 1 - seen.sum(axis=1)
    whole = _native.replay(accesses, [buffers], rules)
    passes = float(whole["passes"][0]) - float(
        _native.replay(accesses[:begin], [buffers], rules)["passes"][0]
    )
    visits = weights[:: pages // 3] / weights.sum() * (len(accesses) - begin) / passes
    assert len(first["buffer_pages"]) == buffers
    law = clock.law(visits, SINGLE)
    assert law.shape == (3, 7)
    assert np.allclose(law.sum(axis=1), 1)
    assert not law[:, usage_cap + 2 :].any()
    assert np.abs(law - seen).max() < 0.02, (law.round(3), seen.round(3))


@pytest.mark.parametrize(("usage_cap", "admission"), POLICIES)
def test_paths_rest_in_the_law(usage_cap: int, admission: int) -> None:
    """Two statements of the same rules: the chain over the steps of a pass, and the law of a random time."""
    clock = Clock(usage_cap, admission)
    batch = np.array([0.6, 0.2, 0.1, 0.05, 0.05])
    rest = dense_rest(dense_step(batch, clock))
    by_count = np.column_stack([rest[:, 0], rest[:, 1:].reshape(-1, 6, STEPS).sum(axis=2)])
    assert np.abs(by_count - clock.law(GRID, batch)).max() < 0.02


def test_caps_that_tables_have_no_room_for_are_refused() -> None:
    for usage_cap, admission in ((0, 0), (6, 1), (1, 2)):
        with pytest.raises(ValueError, match="no rates can be inferred"):
            Clock(usage_cap, admission)
    assert Clock.of(_native.Rules(18)) == USUAL


SIZES = [500, 1000, 2000, 4000, 8000]


@pytest.mark.parametrize(
    "rules",
    [
        _native.Rules(18, usage_cap=1),
        _native.Rules(19, usage_cap=1, hands=4),
        _native.Rules(18, usage_cap=3),
    ],
)
def test_a_pool_of_another_policy_is_predicted_at_other_sizes(rules: _native.Rules) -> None:
    accesses = zipf_pages(20_000, 0.9, 1_000_000, 3, uniform=0.1)
    seen = record(accesses, 400_000, pages=20_000, buffers=2000, snapshots=24, rules=rules)
    assert seen.snapshots["usage_count"].max() == rules.usage_cap
    found = seen.predict(SIZES)
    expected = truth(accesses, 400_000, SIZES, rules)
    assert np.abs(found.miss_ratio - expected).max() < 0.01, (found.miss_ratio, expected)
    # Another policy misses at other pages: what the usual one would make of it is further off.
    assert np.abs(truth(accesses, 400_000, SIZES) - expected).max() > 0.002
