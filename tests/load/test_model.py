"""Random loads against a model: every record is in the table once, or refused once, or all is as before.

Each case comes from its seed: a table, files, bad records, options, and for some a kill or a fault, after
which `--resume` or `--rollback` is run. What must be there is computed from the records that were generated,
and `pg_dump` says whether anything else has changed. `--load-cases 2000` runs more of them, `--load-seed N`
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.load.model_run import Run
from tests.load.model_server import Server

CASES = 200
_ended: Counter[str] = Counter()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first, count = metafunc.config.getoption("--load-seed"), metafunc.config.getoption("--load-cases")
        count = count or (CASES if first is None else 1)
        metafunc.parametrize("seed", range(first or 0, (first or 0) + count))


@pytest.mark.slow
@pytest.mark.one_server
def test_a_load_does_all_or_nothing(
    bindir: Path | None, model_servers: Callable[[Path | None], Server], tmp_path: Path, seed: int
) -> None:
    _ended[Run(model_servers(bindir), seed, tmp_path).go()] += 1


@pytest.mark.slow
def test_most_cases_load() -> None:
    """What was refused is seen: a generator of which most is refused would show nothing."""
    for how, count in _ended.most_common():
        print(f"{count:5} {how}")
    if sum(_ended.values()) >= 100:
        assert _ended["loaded"] >= 0.6 * sum(_ended.values()), _ended
