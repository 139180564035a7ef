"""`pgsweep warm run` and `restore` into a pool in use: what is pushed out meanwhile is read once more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.residency.access import opened
from pgsweep.ui.kit.numbers import format_bytes
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.warm import warm_text
from pgsweep.ui.views.warm_restore import restore_text
from pgsweep.warm.heat.file import read_heat
from pgsweep.warm.heat.restore import restore
from pgsweep.warm.heat.restore_plan import RestoreOptions
from pgsweep.warm.heat.restore_rounds import MOST_ROUNDS, OWN_BLOCKS, Remaining, another_round
from pgsweep.warm.heat.save import save
from pgsweep.warm.run import warming as running
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.reread_evicted import look_again
from pgsweep.warm.run.verify import Resident
from pgsweep.warm.run.warming import run
from tests.fix_warm import BLOCK_BYTES, piece_of

POOL_MB = 64


@pytest.mark.parametrize("rate", [None, 1e9], ids=["any", "rate"])
def test_what_no_longer_exists_was_not_pushed_out(
    fresh: str, rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Resident] = []

    def changed_first(*arguments: Any) -> Resident:
        if not looks:
            with psycopg.connect(fresh, autocommit=True) as connection:
                connection.execute("DROP TABLE scratch")
                connection.execute("TRUNCATE orders")
                connection.execute("DELETE FROM parts_b WHERE at > 5100")
                connection.execute("VACUUM (TRUNCATE) parts_b")
        looks.append(look_again(*arguments))
        return looks[-1]

    monkeypatch.setattr(running, "look_again", changed_first)
    names = ("scratch", "orders", "parts", "secret")
    before = {name: piece_of(fresh, name).blocks for name in ("scratch", "orders", "orders_pkey", "parts_b")}
    options = WarmOptions(selection=Selection(relations=names), rate_bytes_per_second=rate)
    result = run(fresh, options)
    assert result.work is not None
    assert result.verified is not None
    assert result.work.pushed_out_bytes == 0
    gone = sum(before.values()) - piece_of(fresh, "parts_b").blocks
    # Their maps of free space and of visible pages are gone too.
    assert gone <= result.verified.gone_bytes / BLOCK_BYTES <= gone + 12
    text = warm_text(result, Terminal())
    assert (
        f"{format_bytes(result.verified.gone_bytes)} were read into shared_buffers and no longer exist"
        in text
    )
    assert "pushed out" not in text


@dataclass(frozen=True)
class Full:
    """A server with a pool in use, and where the heat of `mine` was saved: usage_count 1, a quarter at 2."""

    conninfo: str
    heat: Path


Filled = Callable[[Path | None, tuple[int, int]], tuple[Cluster, Path]]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """Gives a server with the tables `hot` and `mine` of so many MB, and the heat of `mine`."""
    made: dict[tuple[Path | None, tuple[int, int]], tuple[Cluster, Path]] = {}
    settings = {"shared_buffers": f"{POOL_MB}MB", "autovacuum": "off", "bgwriter_lru_maxpages": "0"}
    with ExitStack() as closing:

        def filled_with(bindir: Path | None, sizes_mb: tuple[int, int]) -> tuple[Cluster, Path]:
            if (bindir, sizes_mb) not in made:
                cluster = closing.enter_context(Cluster.create(bindir, settings))
                heat = tmp_path_factory.mktemp("heat") / "mine.heat"
                fill(cluster, sizes_mb, heat)
                made[bindir, sizes_mb] = cluster, heat
            return made[bindir, sizes_mb]

        yield filled_with


def fill(cluster: Cluster, sizes_mb: tuple[int, int], heat: Path) -> None:
    cluster.create_extensions("postgres", "pg_prewarm", "pg_buffercache")
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        for name, megabytes in zip(("hot", "mine"), sizes_mb, strict=True):
            connection.execute(f"CREATE TABLE {name} (id int, filler text)".encode())
            connection.execute(f"ALTER TABLE {name} ALTER filler SET STORAGE PLAIN".encode())
            rows = f"SELECT g, repeat('x', 8000) FROM generate_series(1, {megabytes * 128}) AS g"
            connection.execute(f"INSERT INTO {name} {rows}".encode())
        connection.execute("VACUUM ANALYZE")
    cluster.restart()
    quarter = sizes_mb[1] * 128 // 4
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("SELECT pg_prewarm('mine')")
        connection.execute("SELECT pg_prewarm('mine', 'buffer', 'main', 0, %s)", [quarter - 1])
    with opened(cluster.conninfo()) as access:
        save(access, heat)


@pytest.fixture(params=[(56, 48), (45, 23)], ids=["large", "small"])
def full(bindir: Path | None, request: pytest.FixtureRequest, filled: Filled) -> Full:
    """A server whose pool is nearly full of one table, `hot`, at usage_count 5; `mine` is still to come.

    What comes first takes the unused buffers, and is then the first that the clock sweep can take. Where but
    a little of `mine` needs others' buffers, reading that once more would only take other blocks of `mine`.
    """
    cluster, heat = filled(bindir, request.param)
    cluster.restart()
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        for _ in range(6):
            connection.execute("SELECT pg_prewarm('hot')")
    return Full(cluster.conninfo(), heat)


def test_what_a_full_pool_pushes_out_is_read_once_more(full: Full) -> None:
    result = run(full.conninfo, WarmOptions(selection=Selection(relations=["mine"])))
    work, verified = result.work, result.verified
    assert work is not None
    assert verified is not None
    assert work.read_bytes == work.asked_bytes == verified.pool_asked_bytes
    assert verified.pool_before_bytes == 0
    assert 0.1 * work.asked_bytes < work.pushed_out_bytes < 0.5 * work.asked_bytes
    assert verified.pool_bytes is not None
    assert verified.pool_bytes > 0.99 * verified.pool_asked_bytes
    assert "read and touched again" in warm_text(result, Terminal())
    assert "evicted again" not in warm_text(result, Terminal())


def test_a_run_that_is_stopped_brings_nothing_back(full: Full) -> None:
    stop = threading.Event()
    stop.set()
    result = run(full.conninfo, WarmOptions(selection=Selection(relations=["mine"])), stop=stop)
    assert result.work is not None
    assert result.work.stopped
    assert result.work.pushed_out_bytes == 0
    assert result.verified is not None
    assert (result.verified.pool_bytes or 0) < result.verified.pool_asked_bytes


def usage_counts(conninfo: str) -> dict[int, int]:
    """Return how many blocks of `mine` are in the pool, by usage count."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT usagecount, count(*) FROM pg_buffercache"
            " WHERE relfilenode = pg_relation_filenode('mine') AND relforknumber = 0 GROUP BY 1"
        ).fetchall()
    return dict(rows)


SMALL = pytest.mark.parametrize("full", [(45, 23)], ids=["small"], indirect=True)
"""Where the clock hand must go round before it finds room, so that what came first has gone for certain."""


@SMALL
def test_a_restore_goes_rounds_until_all_stays_with_its_usage_counts(full: Full) -> None:
    result = restore(full.conninfo, full.heat, read_heat(full.heat), RestoreOptions(), stop=threading.Event())
    assert result.after is not None
    assert result.after.resident > 0.99
    assert 1 < result.rounds <= MOST_ROUNDS + 1
    assert result.pushed_out_bytes > 0.05 * result.to_pool_bytes
    assert "rounds, as the pool was in use" in restore_text(result, Terminal())
    found = usage_counts(full.conninfo)
    blocks = sum(found.values())
    assert found[2] == pytest.approx(blocks / 4, abs=0.05 * blocks)
    assert found[1] == pytest.approx(3 * blocks / 4, abs=0.05 * blocks)


@SMALL
def test_a_restore_that_keeps_a_rate_goes_one_round(full: Full) -> None:
    options = RestoreOptions(rate_bytes_per_second=1e9)
    result = restore(full.conninfo, full.heat, read_heat(full.heat), options, stop=threading.Event())
    assert result.after is not None
    assert (result.rounds, result.pushed_out_bytes) == (1, 0)
    assert result.after.resident < 0.95
    assert "evicted again" in restore_text(result, Terminal())


def test_a_restore_into_a_pool_in_use_ends_with_all_resident(full: Full) -> None:
    result = restore(full.conninfo, full.heat, read_heat(full.heat), RestoreOptions(), stop=threading.Event())
    assert result.after is not None
    assert result.after.resident > 0.98
    assert 1 <= result.rounds <= MOST_ROUNDS + 1


def test_rounds_end_when_all_is_there_or_nothing_helps() -> None:
    wanted, accesses = 100_000, 300_000
    much = OWN_BLOCKS + 5_000
    assert not another_round([], wanted, accesses)
    assert not another_round([Remaining(OWN_BLOCKS, 0)], wanted, accesses)
    assert another_round([Remaining(much, 0)], wanted, accesses)
    assert another_round([Remaining(much, 0), Remaining(much + 9, 0)], wanted, accesses), (
        "what else was there is lower now"
    )
    assert not another_round([Remaining(much, 0)] * 3, wanted, accesses), "it is used meanwhile"
    assert another_round([Remaining(much + 9, 0), Remaining(much, 0), Remaining(much, 0)], wanted, accesses)
    assert another_round([Remaining(much, 0), Remaining(0, 90_000)], wanted, accesses), (
        "only the counts are left"
    )
    assert not another_round([Remaining(0, 90_000), Remaining(0, 80_000)], wanted, accesses)
    assert another_round([Remaining(0, 90_000), Remaining(0, 40_000)], wanted, accesses)
    assert not another_round([Remaining(0, 90_000), Remaining(0, 10_000)], wanted, accesses)
    falling = [Remaining(90_000 - 1_000 * i, 0) for i in range(20)]
    assert [another_round(falling[:n], wanted, accesses) for n in range(1, 21)].count(True) == MOST_ROUNDS
