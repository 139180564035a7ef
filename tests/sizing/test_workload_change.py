"""Whether the load of two recordings is the same, and by how much it moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs

from pgsweep.sizing.verify import verify
from pgsweep.sizing.workload_change import Load, compare_loads, difference, drift_of
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.verification import VIEW
from tests.fix_workload import load


def test_what_counts_as_another_load() -> None:
    before = load({"public.a": 0.7, "public.b": 0.3})
    assert difference(before.shares, {"public.b": 1.0}) == pytest.approx(0.7)

    def changed(after: Load, first: Load = before) -> list[str]:
        return [one.name for one in compare_loads(first, after) if one.changed]

    assert changed(load({"public.a": 0.65, "public.b": 0.35})) == []
    assert changed(load({"public.a": 0.5, "public.c": 0.5})) == ["accesses by relation"]
    restless = load(before.shares, half=0.2)
    assert changed(load({"public.a": 0.5, "public.b": 0.5}), restless) == []
    assert changed(load(before.shares, accesses=20)) == ["page accesses per transaction"]
    assert changed(load(before.shares, rows=3)) == ["rows written per transaction"]


def test_a_change_of_the_load_is_said_of_what_was_before() -> None:
    before = load({"public.a": 1.0}, accesses=90, rows=1.6)
    workload = compare_loads(before, load(before.shares, accesses=121.5, rows=176))
    evidence, plain = Path(__file__).parents[1] / "answers" / "evidence", Terminal(width=100, unicode=False)
    result = verify(evidence / "sql-before-15", evidence / "sql-after-15")
    text = VIEW.text(structs.replace(result, workload=workload), plain)
    assert re.search(r"accesses per transaction .* \+35\.0% +-10% to \+11% +changed", text)
    assert re.search(r"rows written per transaction .* 110 times +-20% to \+25% +changed", text)
    restless = load(before.shares, half=0.4)
    text = VIEW.text(structs.replace(result, workload=compare_loads(restless, before)), plain)
    assert re.search(r"accesses per transaction .* any\b", text)
    none = compare_loads(load(before.shares, rows=0), before)
    assert "from none" in VIEW.text(structs.replace(result, workload=none), plain)


def test_how_far_the_load_itself_moved() -> None:
    before = load({"public.a": 0.99, "public.b": 0.01})
    assert (drift_of(before, before).low, drift_of(before, before).high) == (1.0, 1.0)
    # A hundredth of the accesses went to a table that hardly fits: the misses rise by a sixth.
    moved = load({"public.a": 0.98, "public.b": 0.02}, misses={"public.a": 0.05, "public.b": 0.9})
    drift = drift_of(before, moved)
    assert drift.low == 1.0
    assert drift.high == pytest.approx((0.98 * 0.05 + 0.02 * 0.9) / (0.99 * 0.05 + 0.01 * 0.9))
    restless = drift_of(load(before.shares, halves=(0.08, 0.1)), before)
    assert (restless.low, restless.high) == pytest.approx((0.8, 1.2))
    assert drift_of(load(before.shares, accesses=10.5), before).high == pytest.approx(1 + 0.5 / 10.5)
    unseen = drift_of(load(before.shares, halves=(0.0, 0.1)), before)
    assert unseen.high == 1.0, "the counters were read twice only"
