"""Workloads drawn from a seed: the same again, and each statement of theirs runs on real servers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.calibration.cases import Lengths, hottest, read_case, run_case, slowed
from benchmarks.calibration.evaluate import evaluate, ratio, repeat_noise, today
from benchmarks.calibration.generator import draw, table_blocks
from benchmarks.calibration.scripts import pgbench_script
from benchmarks.calibration.specification import (
    Kind,
    Popularity,
    Script,
    Specification,
    Statement,
    Stream,
    Table,
)
from benchmarks.calibration.stretches import transactions_per_client
from pgsweep.testbed.filling import PoolContent

_KEYED: tuple[Kind, ...] = (
    "point",
    "toast",
    "range",
    "by_ref",
    "bitmap",
    "index_only",
    "update_hot",
    "update_cold",
    "delete",
    "upsert",
)
_LAWS = (
    Popularity(law="zipf", exponent=0.7, seed=1),
    Popularity(law="zipf", exponent=1.2, seed=2),
    Popularity(law="uniform", seed=3),
    Popularity(law="latest", exponent=5.0),
    Popularity(law="classes", hot_share=0.1, hot_probability=0.9, seed=4),
    Popularity(law="moving", exponent=2.0, hot_share=0.1, rows_per_transaction=7),
    Popularity(law="loop", rows_per_transaction=30),
)
SHORT = Lengths(age_seconds=1.5, warm_seconds=3.0, stretch_seconds=2.0, stretches=2)


def _everything() -> Specification:
    """Return a small case with every kind of statement, every law, and every kind of table."""
    tables = (
        Table(name="t0", rows=9000, filler_bytes=200, ref_index=True, rows_per_ref=4, fillfactor=85),
        Table(name="t1", rows=6000, filler_bytes=100, ref_index=True, covering=True, partitions=3),
        Table(name="t2", rows=400, filler_bytes=20, ref_index=True, toast_bytes=4000),
    )
    scripts = [
        Script(statements=tuple(Statement(kind=kind, table=n % 3, popularity=law, rows=5) for kind in kinds))
        for n, law in enumerate(_LAWS)
        for kinds in (_KEYED[:5], _KEYED[5:])
    ]
    scripts += [
        Script(
            statements=(
                Statement(kind="insert", table=2),
                Statement(kind="join", table=0, other=1, popularity=_LAWS[0], rows=4),
                Statement(kind="point", table=0, popularity=_LAWS[0], again=True),
            ),
            think_milliseconds=2,
        )
    ]
    chores: tuple[Kind, ...] = ("copy", "stage", "vacuum", "temporary", "create")
    return Specification(
        seed=1,
        observed_blocks=256,
        size_factors=(0.5, 1.0, 16.0),
        tables=tables,
        streams=(
            Stream(name="main", clients=2, transactions_per_second=60.0, scripts=tuple(scripts)),
            Stream(
                name="scans",
                clients=1,
                transactions_per_second=1.0,
                scripts=tuple(
                    Script(statements=(Statement(kind=kind, table=0, other=1),))
                    for kind in ("scan", "analytic")
                ),
                parallel_workers=2,
            ),
            Stream(
                name="chores",
                clients=1,
                transactions_per_second=4.0,
                scripts=tuple(
                    Script(statements=(Statement(kind=kind, table=n, popularity=law, rows=50),))
                    for kind in chores
                    for n, law in ((0, _LAWS[2]), (1, _LAWS[0]))
                ),
                simple=True,
            ),
        ),
        settings={"autovacuum": "off", "max_connections": "40", "checkpoint_timeout": "30s"},
        tags=("everything",),
    )


def test_a_seed_gives_the_same_workload_and_another_seed_another() -> None:
    assert draw(11) == draw(11)
    assert len({msgspec.json.encode(draw(seed)) for seed in range(40)}) == 40


def test_a_specification_survives_json() -> None:
    for seed in range(20):
        spec = draw(seed)
        assert msgspec.json.decode(msgspec.json.encode(spec), type=Specification) == spec


def test_every_case_is_within_what_was_promised() -> None:
    tags: set[str] = set()
    for seed in range(300):
        spec = draw(seed)
        tags |= set(spec.tags)
        assert 2 <= len(spec.tables) <= 30
        assert 1.0 in spec.size_factors
        assert len(spec.size_factors) >= 6
        assert min(spec.size_factors) == 0.125
        assert 2048 <= spec.observed_blocks <= 8192
        assert 1 <= spec.streams[0].clients <= 16
        lengths = [len(script.statements) for script in spec.streams[0].scripts]
        assert max(lengths) <= 52
        data = sum(table_blocks(table) for table in spec.tables)
        assert data < 1.5 * 300 * 128
    wanted = {
        "scan",
        "parallel",
        "serial scans",
        "copy",
        "vacuum",
        "temporary",
        "create",
        "partitions",
        "toast",
    }
    assert wanted | {"moving", "loop", "latest", "bitmap", "index_only", "analytic", "growing"} <= tags


def test_a_key_that_is_used_again_is_drawn_once() -> None:
    law = _LAWS[2]
    script = Script(
        statements=(
            Statement(kind="update_hot", table=0, popularity=law),
            Statement(kind="point", table=0, popularity=law, again=True),
        )
    )
    text = pgbench_script(_everything(), script)
    assert text.count("\\set k") == 1
    assert text.count(":k0") == 2
    assert text.index("BEGIN;") < text.index("UPDATE") < text.index("SELECT") < text.index("END;")


def test_a_slower_pace_keeps_the_proportions() -> None:
    spec = _everything()
    slow = slowed(spec, 0.5)
    assert [s.transactions_per_second for s in slow.streams] == [30.0, 0.5, 2.0]
    assert [transactions_per_client(s, 8.0) for s in slow.streams] == [120, 4, 16]


def test_the_hottest_blocks_of_a_pool_are_those_used_most() -> None:
    content = PoolContent(
        blocks={"a": np.arange(4), "b": np.array([7, 9])},
        usage_counts={"a": np.array([0, 5, 1, 4]), "b": np.array([3, 0])},
    )
    kept = hottest(content, 3, seed=0)
    assert kept.blocks["a"].tolist() == [1, 3]
    assert kept.blocks["b"].tolist() == [7]
    assert hottest(content, 6, seed=0) is content


@pytest.mark.slow
@pytest.mark.one_server
def test_a_case_of_everything_runs_repeats_and_is_judged(bindir: Path | None, tmp_path: Path) -> None:
    folder = tmp_path / "1-short"
    ran = run_case(_everything(), folder, bindir=bindir, lengths=SHORT, at_once=2)
    assert ran == read_case(folder)
    assert [truth.blocks for truth in ran.truth] == [128, 256, 4096]
    ratios = [ratio(truth) for truth in ran.truth]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > ratios[-1] + 0.05
    # The largest holds everything: of 4096 buffers some are still unused.
    assert ran.truth[-1].unused_blocks > 0
    # The same transactions everywhere: accesses differ by connections and by what HOT pruning finds.
    counts = [sum(s.accesses for s in truth.stretches) for truth in (*ran.truth, ran.observed)]
    assert max(counts) < 1.1 * min(counts)
    assert abs(ratio(today(ran)) - ratio(ran.observed)) < 0.02 + 4 * repeat_noise(ran)

    outcomes = evaluate(folder)
    assert {outcome.source for outcome in outcomes} | set(ran.failed) == {"sql", "peek", "trace"}
    for outcome in outcomes:
        assert outcome.level != "failed", outcome.reasons
        assert outcome.passes > 1
        for point in outcome.points:
            assert point.low <= point.predicted <= point.high
