"""Loads that are killed at a few random points; `make bench NAME=load` does it at forty and more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.load.crash import Case, crash_cases, crashing_server

CRASHES, MOST_CRASHES = 6, 24


@pytest.mark.slow
def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    cases: list[Case] = []
    with crashing_server() as cluster:
        for case in crash_cases(cluster, tmp_path, rows=20_000, seed=seed):
            cases.append(case)
            # A crash that comes before or after all of the work shows nothing.
            if len(cases) >= CRASHES and any(case.phase != "none" for case in cases):
                break
            assert len(cases) < MOST_CRASHES, f"seed {seed}: {cases}"
    assert [case for case in cases if case.failures] == [], f"seed {seed}"
