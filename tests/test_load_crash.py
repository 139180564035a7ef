"""Loads that are killed at a few random points; `make bench NAME=load` does it at forty and more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.load.crash import crash_cases, crashing_server

CRASHES = 6


@pytest.mark.slow
def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    with crashing_server() as cluster:
        cases = crash_cases(cluster, tmp_path, CRASHES, rows=20_000, seed=seed)
    assert [case for case in cases if case.failures] == [], f"seed {seed}"
    # A crash that comes before or after all of the work shows nothing.
    assert any(case.phase != "none" for case in cases), f"seed {seed}: {cases}"
