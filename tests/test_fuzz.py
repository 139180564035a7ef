"""A short run of every fuzzing target; `make fuzz TIME=1h` runs them for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.targets import target_names

RUNS = 100
FEWER = {"endless": 50}
"""These have every command and every kind of answer without end; tests/pg/test_endless.py has more of it."""
SECONDS = 3000.0
"""Not reached: the same inputs are run on a slow machine as on a fast one."""


@pytest.mark.slow
@pytest.mark.parametrize("name", target_names())
def test_no_input_ends_in_anything_but_words(name: str, tmp_path: Path) -> None:
    runs = FEWER.get(name, RUNS)
    outcome = fuzz(name, SECONDS, tmp_path, most_runs=runs)
    assert outcome.runs == runs
    assert not outcome.findings, outcome.findings[0].read_text()
