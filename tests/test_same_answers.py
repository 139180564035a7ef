"""What pgsweep answers about small recordings is, byte for byte, what it answered before (tests/answers)."""

from __future__ import annotations

import pytest

from tools.same_answers import asked, difference, in_own_process, is_same, kept, names

BEFORE = """\
$ pgsweep predict one --json
{
  "reasons": [
    "at 2 MB"
  ],
  "miss_ratio": 0.25
}
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
    if now != before:
        pytest.fail(
            f"{difference(name, before, now)}\nif that is meant: python -m tools.same_answers {name} --write"
        )


@pytest.mark.parametrize("name", ["short", "exported"])
def test_processes_of_their_own_answer_the_same(name: str) -> None:
    assert asked(name, in_own_process) == kept(name)


@pytest.mark.parametrize(
    ("now", "tolerance", "added", "same"),
    [
        (BEFORE, 0.0, False, True),
        (BEFORE.replace("0.25", "0.2500001"), 0.0, False, False),
        (BEFORE.replace("0.25", "0.2500001"), 1e-9, False, False),
        (BEFORE.replace("0.25", "0.2500001"), 1e-5, False, True),
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
