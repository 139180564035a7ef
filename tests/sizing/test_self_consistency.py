"""What does not agree with itself is rough or refused, with a reason that names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pgsweep.evidence.schema import TABLES
from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter
from pgsweep.records.prediction import Level
from pgsweep.records.reasons import Reason
from pgsweep.sizing.estimate import Estimate, without_unknown
from pgsweep.sizing.predict import predict
from pgsweep.sizing.snapshots.doubts import (
    Part,
    part_doubts,
    shift_doubts,
    stranger_doubts,
    today_doubts,
)
from pgsweep.sizing.snapshots.totals import read_totals
from pgsweep.sizing.verdict import Doubt, judged
from tests.fix_pool import record, zipf_pages

GOOD = Part(
    name="orders", counted_misses=500, expected_misses=510, seen_resident=4000, expected_resident=3990
)


def test_the_gravest_doubt_decides_and_comes_first() -> None:
    assert judged([]) == ("reliable", [])
    a, b, c = (Reason(code="evidence", text=text) for text in "abc")
    doubts = [Doubt("reliable", a), Doubt("refused", b), Doubt("rough", c), Doubt("rough", c)]
    assert judged(doubts) == ("refused", [b, c, a])


def curve(half_widths: list[float], level: Level = "reliable") -> Estimate:
    middle = np.full(len(half_widths), 0.3)
    return Estimate(
        sizes_blocks=tuple(1024 << at for at in range(len(half_widths))),
        miss_ratio=middle,
        low=middle - half_widths,
        high=middle + half_widths,
        pass_seconds=1.0,
        level=level,
        reasons=[],
    )


def test_a_size_with_a_wide_interval_is_not_known() -> None:
    kept, unknown = without_unknown(curve([0.02, 0.01, 0.039, 0.05]))
    assert kept.sizes_blocks == (1024, 2048, 4096) and unknown == [8192]
    assert len(kept.miss_ratio) == len(kept.low) == len(kept.high) == 3
    assert kept.level == "rough" and kept.reasons[0].text.startswith("at 64 MB the miss ratio is not known")
    assert without_unknown(curve([0.02, 0.039]))[1] == []


def test_what_no_longer_recording_shows_is_said_to_need_a_trace() -> None:
    wide = replace(curve([0.01, 0.05, 0.06]), in_order_blocks=(4096,))
    kept, unknown = without_unknown(wide)
    assert unknown == [2048, 4096]
    assert [reason.text.split(": ")[1] for reason in kept.reasons] == [
        "record for longer; nearer to today's size it is known better",
        "take a trace (record --source trace)",
    ]


def test_a_curve_without_any_known_size_is_refused() -> None:
    kept, unknown = without_unknown(curve([0.05, 0.2, 0.3]))
    assert kept.level == "refused" and unknown == [1024, 2048, 4096]
    assert kept.reasons[0].text.startswith("at 3 sizes")
    assert without_unknown(curve([0.2], "refused"))[1] == [], "nothing of it is shown anyway"


def test_a_size_at_which_a_pass_is_too_short_is_not_known() -> None:
    seen = replace(curve([0.01, 0.05, 0.01]), unseen_blocks=(1024, 2048))
    kept, unknown = without_unknown(seen)
    assert kept.sizes_blocks == (4096,) and unknown == [1024, 2048]
    assert kept.level == "reliable", "what is shown is as good as before"
    [reason] = kept.reasons
    assert reason.text.startswith(
        "at 8 MB and 16 MB the clock hand would pass the pool in less than 0.2 s, or 32"
    )
    assert reason.code == "size-not-shown" and "--source trace" in reason.text
    nothing, _ = without_unknown(replace(curve([0.01]), unseen_blocks=(1024,)))
    assert nothing.level == "refused"


def test_what_agrees_raises_no_doubt() -> None:
    assert part_doubts([GOOD], 8000, seconds=60, miss_ratio=0.02) == []
    assert today_doubts(0.320, 0.319, 0.001) == []
    assert stranger_doubts(0.02, 0.01) == []
    assert shift_doubts(["a", "b"], np.array([50.0, 50.0]), np.array([55.0, 48.0])) == []


@pytest.mark.parametrize(("predicted", "level"), [(0.33, "rough"), (0.95, "refused")])
def test_another_miss_ratio_today_than_measured(predicted: float, level: str) -> None:
    [doubt] = today_doubts(predicted, 0.32, 0.001)
    assert doubt.level == level
    assert "32.0%" in doubt.reason.text


@pytest.mark.parametrize(("expected", "level"), [(800.0, "rough"), (5000.0, "refused")])
def test_a_relation_whose_misses_are_not_explained_is_named(expected: float, level: str) -> None:
    [doubt] = part_doubts(
        [GOOD, replace(GOOD, name="big", expected_misses=expected)], 8000, seconds=60, miss_ratio=0.02
    )
    assert doubt.level == level
    assert "`big`" in doubt.reason.text


def test_what_a_growing_relation_is_expected_to_miss_too_much_refuses_nothing() -> None:
    tail = replace(GOOD, name="log", expected_misses=GOOD.counted_misses * 1.7)
    for grows, level in ((False, "refused"), (True, "rough")):
        parts = [replace(GOOD, expected_misses=GOOD.counted_misses), replace(tail, grows=grows)]
        [doubt] = part_doubts(parts, 8000, seconds=60, miss_ratio=0.2)
        assert doubt.level == level
    few = replace(GOOD, name="log", grows=True, expected_misses=GOOD.counted_misses * 0.3)
    [doubt] = part_doubts([GOOD, few], 8000, seconds=60, miss_ratio=0.2)
    assert doubt.level == "refused", "misses that nothing explains"


@pytest.mark.parametrize(("more", "level"), [(1.04, "rough"), (1.2, "refused")])
def test_where_most_accesses_miss_a_few_misses_too_many_refuse_nothing(more: float, level: str) -> None:
    """4 % of the misses are 3 % of the accesses there."""
    large = replace(GOOD, counted_misses=20_000.0)
    [doubt] = part_doubts(
        [replace(large, expected_misses=20_000.0 * more)], 8000, seconds=600, miss_ratio=0.8
    )
    assert doubt.level == level


def test_what_a_standby_replays_explains_misses_that_are_not_counted() -> None:
    """Of 86 counted and 123 expected the rest are reads of the process that replays WAL."""
    part = replace(GOOD, counted_misses=86.0, expected_misses=123.0)
    [doubt] = part_doubts([part], 8000, seconds=600, miss_ratio=0.2)
    assert doubt.level == "refused"
    assert part_doubts([part], 8000, seconds=600, miss_ratio=0.2, uncounted=40.0) == []
    fewer = replace(part, expected_misses=49.0)
    [doubt] = part_doubts([fewer], 8000, seconds=600, miss_ratio=0.2, uncounted=40.0)
    assert doubt.level == "refused", "no read that is not counted explains too few"


def test_residents_that_are_not_seen() -> None:
    [doubt] = part_doubts(
        [GOOD, replace(GOOD, name="big", expected_resident=6500.0)], 8000, seconds=60, miss_ratio=0.02
    )
    assert doubt.level == "refused"
    assert "`big`" in doubt.reason.text


def test_pools_of_others() -> None:
    other, unknown = stranger_doubts(0.5, 0.4)
    assert (other.level, unknown.level) == ("rough", "refused")
    assert "50% of the pool holds pages of other databases" in other.reason.text


def test_a_load_that_moves_to_another_relation() -> None:
    [doubt] = shift_doubts(["a", "b"], np.array([90.0, 10.0]), np.array([10.0, 90.0]))
    assert doubt.level == "rough"
    assert "90%" in doubt.reason.text


def test_statistics_reset_meanwhile_are_summed_and_said() -> None:
    accesses = zipf_pages(8_000, 0.9, 400_000, 1)
    seen = record(accesses, 360_000, pages=8_000, buffers=1_000, snapshots=12)
    before = read_totals(seen.counters, seen.relations, "bench")
    values = seen.counters["value"].copy()
    late = seen.counters["seconds"] > 2.0
    of_server = seen.counters["scope"] != "bgwriter"
    for name in ("blks_read", "blks_hit"):
        here = late & of_server & (seen.counters["name"] == name)
        values[here] -= values[here].min() - 1.0
    after = read_totals({**seen.counters, "value": values}, seen.relations, "bench")
    assert after.was_reset and not before.was_reset
    assert after.misses == pytest.approx(before.misses, rel=0.25)
    reset = replace(seen, counters={**seen.counters, "value": values})
    found = reset.predict([1_000])
    assert found.level != "reliable"
    assert "statistics-reset" in [reason.code for reason in found.reasons]


def test_without_counters_there_is_no_number(tmp_path: Path) -> None:
    meta = EvidenceMeta(
        source="sql",
        server_version_num=180000,
        shared_buffers_blocks=100,
        database="bench",
        database_oid=5,
        settings={"track_counts": "off"},
        complete=True,
    )
    with EvidenceWriter(tmp_path / "x.evidence", meta) as writer:
        for table in ("snapshots", "snapshot_times", "counters"):
            writer.append(
                table,
                {name: ["" if kind == "str" else name == "frame"] for name, kind in TABLES[table].items()},
            )
        writer.close(meta)
    found = predict(tmp_path / "x.evidence")
    assert found.points == []
    assert found.verdict.level == "refused"
    assert found.verdict.reasons[0].code == "counters-off"


def test_a_recording_of_one_pass_is_rough_and_says_how_long() -> None:
    accesses = zipf_pages(32_000, 0.9, 700_000, 3)
    seen = record(accesses, 690_000, pages=32_000, buffers=4_000, snapshots=30)
    assert seen.passes < 5
    found = seen.predict([2_000, 4_000, 16_000])
    assert found.level == "rough"
    assert sum("record for" in reason.text for reason in found.reasons) == 1
    assert found.high[2] - found.low[2] > 0.02
