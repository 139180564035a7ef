"""The pictures of what serves the page accesses, the headline, and what each relation gains."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import msgspec

from pgsweep.advice.decide import decide
from pgsweep.advice.reads import reads_by_size
from pgsweep.advice.shared_buffers import decide_size
from pgsweep.records.advice import AdviceResult
from pgsweep.records.prediction import (
    MemoryPrediction,
    PredictResult,
    RelationCurve,
    RelationReads,
    Throughput,
    ThroughputPoint,
)
from pgsweep.ui.kit.plot import spread
from pgsweep.ui.views.advice import VIEW
from pgsweep.ui.views.prediction import VIEW as PREDICTION
from pgsweep.ui.views.served import Served, served_svg
from tests.fix_advice import GB, situation
from tests.fix_results import cells_of, heads_of

MISSES = {GB // 2: 0.2, GB: 0.15, 2 * GB: 0.1, 4 * GB: 0.03}
READS = {GB // 2: 2400.0, GB: 2300.0, 2 * GB: 2000.0, 4 * GB: 600.0}


def relation(name: str, share: float) -> RelationCurve:
    points = [
        RelationReads(
            shared_buffers_bytes=size,
            misses_per_second=reads * share * 2,
            disk_reads_per_second=reads * share,
            disk_reads_low=reads * share * 0.9,
            disk_reads_high=reads * share * 1.1,
        )
        for size, reads in READS.items()
    ]
    return RelationCurve(name=name, points=points)


def predicted(*, ratios: dict[int, float] | None = None) -> PredictResult:
    """Return a prediction from a trace, with the throughput where ratios are given."""
    given = situation(MISSES, READS).prediction
    assert given.memory is not None
    loop = None
    if ratios is not None:
        points = [
            ThroughputPoint(shared_buffers_bytes=size, ratio=ratio, low=ratio * 0.9, high=ratio * 1.1)
            for size, ratio in ratios.items()
        ]
        loop = Throughput(points=points, reasons=[])
    memory: MemoryPrediction = msgspec.structs.replace(
        given.memory, relations=[relation("public.orders", 0.5), relation("odd\n", 0.5)], throughput=loop
    )
    return msgspec.structs.replace(given, memory=memory)


def advised(prediction: PredictResult) -> AdviceResult:
    known = replace(situation(MISSES, READS), prediction=prediction)
    points, basis = reads_by_size(known)
    decision = decide_size(known, points, basis)
    about = {"server_version": "18.1", "database": "shop", "evidence": "shop.evidence"}
    return decide(known, decision, points, basis, missing=[], **about)


def places(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


def test_the_areas_lie_on_each_other_without_a_gap() -> None:
    points = [Served(size, miss, miss / 4, miss / 5, miss / 3) for size, miss in MISSES.items()]
    svg = served_svg(points, measured={GB: 0.15}, marks={GB: "today"}, title="a < b")
    areas = {kind: places(path) for kind, path in re.findall(r'class="served (s-\w+)" d="M(.*?)Z"', svg)}
    assert list(areas) == ["s-pool", "s-page_cache", "s-disk"]
    sizes = len(points)
    # The upper edge of each area, in the order of the sizes, is the lower edge of the one above.
    assert areas["s-disk"][:sizes] == areas["s-page_cache"][sizes:][::-1]
    assert areas["s-page_cache"][:sizes] == areas["s-pool"][sizes:][::-1]
    assert "today: 1 GB" in svg
    assert svg.count("k-measured") == 1
    assert "a &lt; b" in svg
    assert served_svg(points[:1], measured={}, marks={}, title="one") == ""


def test_bounds_are_not_drawn_as_if_the_disk_reads_were_known() -> None:
    points = [Served(size, miss, None, 0.0, miss) for size, miss in MISSES.items()]
    svg = served_svg(points, measured={}, marks={}, title="bounded")
    assert "s-disk" not in svg
    assert "page cache or disk" in svg


def test_a_prediction_leads_with_what_it_comes_to() -> None:
    better = predicted(ratios={GB // 2: 0.95, GB: 1.0, 2 * GB: 1.05, 4 * GB: 1.4})
    page = PREDICTION.page(better)
    assert page.title.startswith("4 GB of shared_buffers instead of 1 GB: 1.40 times the throughput (1.26 to")
    assert page.sections[0].ident == "served"
    assert len(page.sections[0].figures) == 2
    same = predicted(ratios={GB // 2: 0.95, GB: 1.0, 2 * GB: 1.05, 4 * GB: 1.06})
    title = PREDICTION.page(same).title
    assert title == "4 GB would miss 3% (2.8% to 3.1%) instead of 15%. No certain change in throughput"
    reads = PREDICTION.page(predicted())
    assert "to 600 (570 to 630) a second" in reads.title
    assert len(reads.sections[0].figures) == 1


def test_advice_marks_today_and_what_it_advises() -> None:
    page = VIEW.page(advised(predicted(ratios={GB // 2: 0.95, GB: 1.0, 2 * GB: 1.05, 4 * GB: 1.4})))
    assert page.title.startswith("Set shared_buffers = 4GB")
    picture = page.sections[0]
    for figure, _ in picture.figures:
        assert "today: 1 GB" in figure
        assert "advised: 4 GB" in figure
    assert [section.ident for section in page.sections][-2:] == ["relations", "observed"]


def test_what_each_relation_gains_from_each_gigabyte() -> None:
    page = VIEW.page(advised(predicted()))
    section = next(section for section in page.sections if section.ident == "relations")
    assert heads_of(section)[1:] == [
        "disk reads per second at 1 GB",
        "512 MB to 1 GB",
        "1 GB to 2 GB",
        "2 GB to 4 GB",
    ]
    orders = cells_of(section)[0]
    # 2000 and 600 reads a second, half of them, over two gigabytes.
    assert [cell.text for cell in orders] == ["public.orders", "1 150", "100", "150", "350"]
    assert orders[4].note == "285 to 415"
    assert cells_of(section)[1][0].text == "odd\\n"


def test_labels_are_pushed_apart_and_stay_above_the_edge() -> None:
    placed = spread([10.0, 12.0, 96.0, 98.0], 100.0, gap=19.0)
    assert all(after - before >= 19.0 for before, after in pairwise(placed))
    assert placed[-1] <= 100.0
    assert spread([10.0, 50.0], 100.0) == [10.0, 50.0]


def test_a_result_whose_relations_have_no_size_in_common_has_no_table() -> None:
    one, other = relation("public.orders", 0.5), relation("public.items", 0.5)
    apart = [
        msgspec.structs.replace(one, points=one.points[:2]),
        msgspec.structs.replace(other, points=other.points[2:]),
    ]
    given = predicted()
    assert given.memory is not None
    memory = msgspec.structs.replace(given.memory, relations=apart)
    page = PREDICTION.page(msgspec.structs.replace(given, memory=memory))
    assert "relations" not in {section.ident for section in page.sections}
