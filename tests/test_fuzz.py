"""A short run of every fuzzing target; `make fuzz TIME=1h` runs them for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.targets import target_names

SECONDS = 3.0


@pytest.mark.parametrize("name", target_names())
def test_no_input_ends_in_anything_but_words(name: str, tmp_path: Path) -> None:
    outcome = fuzz(name, SECONDS, tmp_path)
    assert outcome.runs > 0
    assert not outcome.findings, outcome.findings[0].read_text()
