"""What pgsweep answers about small recordings is what it answered before (tests/answers).

The tool compares byte for byte. But the last digits of a fit depend on the number of processors: rows are
shared among threads, and a product of matrices adds up in another order. So they do on the vector
instructions that numpy and OpenBLAS find. On other machines numbers differ by up to 5e-12, relative to them.
"""

from __future__ import annotations

import pytest

from tools.same_answers import asked, difference, in_own_process, is_same, kept, names

TOLERANCE = 1e-6
"""Searches end where the next step gains nothing: on another processor a little apart."""
BEFORE = """\
$ pgsweep predict one --json
{
  "reasons": [
    "at 2 MB"
  ],
  "miss_ratio": 0.25
}
--- exit 0

$ pgsweep predict one --csv
1048576,0.125,0.25
--- exit 0

$ pgsweep predict two --json
--- stderr
error: there is no evidence
--- exit 2
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_answers_are_those_of_before(name: str) -> None:
    before, now = kept(name), asked(name)
    if not is_same(before, now, tolerance=TOLERANCE):
        pytest.fail(
            f"{difference(name, before, now)}\nif that is meant: python -m tools.same_answers {name} --write"
        )


@pytest.mark.parametrize("name", ["short", "exported"])
def test_processes_of_their_own_answer_the_same(name: str) -> None:
    assert is_same(kept(name), asked(name, in_own_process), tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("now", "tolerance", "added", "same"),
    [
        (BEFORE, 0.0, False, True),
        (BEFORE.replace(": 0.25", ": 0.2500001"), 0.0, False, False),
        (BEFORE.replace(": 0.25", ": 0.2500001"), 1e-9, False, False),
        (BEFORE.replace(": 0.25", ": 0.2500001"), 1e-5, False, True),
        (BEFORE.replace("0.125", "0.1250000001"), 1e-12, False, False),
        (BEFORE.replace("0.125", "0.1250000001"), 1e-9, False, True),
        (BEFORE.replace("1048576", "1048577"), 1e-3, False, False),
        (BEFORE.replace("exit 2", "exit 1"), 0.1, True, False),
        (BEFORE.replace("at 2 MB", "at 3 MB"), 0.1, True, False),
        (BEFORE.replace('"miss', '"code": 7,\n  "miss'), 0.0, False, False),
        (BEFORE.replace('"miss', '"code": 7,\n  "miss'), 0.0, True, True),
        (BEFORE.replace('"miss_ratio": 0.25', '"hit_ratio": 0.75'), 0.0, True, False),
        (BEFORE.replace('"at 2 MB"', '{"code": "a", "text": "at 2 MB"}'), 0.0, True, True),
        (BEFORE.replace('"at 2 MB"', '{"code": "a", "text": "at 3 MB"}'), 0.0, True, False),
        (BEFORE + "\n$ pgsweep predict three --json\n--- exit 0\n", 0.0, True, False),
    ],
)
def test_what_counts_as_the_same(now: str, tolerance: float, added: bool, same: bool) -> None:
    assert is_same(BEFORE, now, tolerance=tolerance, added=added) is same
