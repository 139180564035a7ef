"""Recorded traces: other workers give the same numbers; long ones are replayed by samples of their pages."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pgsweep import _native
from pgsweep.errors import UsageError
from pgsweep.evidence.store import Evidence, EvidenceMeta, EvidenceWriter
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.observed import Observation, Server
from pgsweep.sizing.predict import predict
from pgsweep.sizing.traces.accesses import Trace
from pgsweep.sizing.traces.curve import TraceCurve
from pgsweep.sizing.traces.recorded import read_trace
from pgsweep.sizing.traces.shared_replays import ReplayPlan
from tests.fix_cli import run
from tests.fix_ids import server
from tests.fix_pool import kinds_of
from tests.fix_written import DATABASE_OID, MIB, write_trace

SIZES_BYTES = [size * MIB for size in (2, 4, 8, 16, 32)]
ACCESSES, POOL_BLOCKS, SECONDS = 1_500_000, 16_000, 60
LAWS = {"orders": (120_000, 0.8), "items": (60_000, 1.2), "log": (40_000, 0.0), "few": (8, 0.0)}
PARTS = {"orders": 0.4, "items": 0.3, "log": 0.1, "few": 0.2}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("short") / "a.evidence")


@pytest.mark.parametrize("kind", ["processes", "executor"])
def test_other_workers_give_the_same_numbers(kind: str, short: Path) -> None:
    here = predict(short, sizes_bytes=SIZES_BYTES)
    if kind == "processes":
        there = predict(short, sizes_bytes=SIZES_BYTES, executor="processes:2")
    else:
        with ThreadPoolExecutor(2) as executor:
            there = predict(short, sizes_bytes=SIZES_BYTES, executor=executor)
    assert len(here.points) == len(SIZES_BYTES)
    assert there == here


def test_a_size_has_the_same_numbers_whatever_others_are_asked_for(short: Path) -> None:
    alone = predict(short, sizes_bytes=SIZES_BYTES[1:2])
    assert alone.points == predict(short, sizes_bytes=SIZES_BYTES).points[1:2]


@dataclass(frozen=True, kw_only=True)
class KillingServer(Server):
    """The first other process that asks for its rules is killed."""

    folder: Path
    parent: int

    @property
    def rules(self) -> _native.Rules:
        if os.getpid() != self.parent:
            try:
                (self.folder / "died").touch(exist_ok=False)
            except FileExistsError:
                return super().rules
            os.kill(os.getpid(), signal.SIGKILL)
        return super().rules


def numbers(found: Estimate) -> list[list[float]]:
    return [column.tolist() for column in (found.miss_ratio, found.low, found.high)]


def test_sizes_of_a_killed_worker_are_replayed_again(short: Path, tmp_path: Path) -> None:
    trace, sizes = read_trace(Observation(Evidence.open(short))), [256, 512, 1024, 2048, 4096]
    kills = KillingServer(**vars(server(1024)), folder=tmp_path, parent=os.getpid())
    here = TraceCurve(trace, kills).at(sizes)
    assert not (tmp_path / "died").exists()
    there = TraceCurve(trace, kills, ReplayPlan(executor="processes:2")).at(sizes)
    assert (tmp_path / "died").exists()
    assert numbers(there) == numbers(here)
    assert there.reasons == here.reasons


def test_the_command_takes_an_executor(short: Path, tmp_path: Path) -> None:
    done = [
        run("predict", str(short), "--sizes", "4MB,16MB", "--json", *more)
        for more in ((), ("--executor", "processes:1"))
    ]
    assert [one.returncode for one in done] == [0, 0], done[1].stderr
    assert '"points"' in done[0].stdout
    points = [one.stdout[one.stdout.index('"points"') :].split("]")[0] for one in done]
    assert points[0] == points[1]


def test_snapshots_have_nothing_to_replay(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.evidence", source="sql")
    with pytest.raises(UsageError, match="not replayed by other processes") as caught:
        predict(path, executor="processes:2")
    assert "made of snapshots" in str(caught.value.cause)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Return a trace of several relations, written as evidence: two Zipf laws, uniform reads, 8 hot pages."""
    random = np.random.default_rng(11)
    names = list(LAWS)
    relation = random.choice(len(names), ACCESSES, p=list(PARTS.values()))
    block = np.zeros(ACCESSES, dtype=np.int64)
    for number, (blocks, exponent) in enumerate(LAWS.values()):
        own = np.flatnonzero(relation == number)
        weight = np.arange(1, blocks + 1) ** -exponent
        edges = np.cumsum(weight) / weight.sum()
        rank = np.minimum(np.searchsorted(edges, random.random(len(own))), blocks - 1)
        block[own] = random.permutation(blocks)[rank]
    path = tmp_path_factory.mktemp("long") / "a.evidence"
    meta = EvidenceMeta(
        source="trace",
        seconds=float(SECONDS),
        server_version_num=180006,
        server_version="18",
        shared_buffers_blocks=POOL_BLOCKS,
        database="shop",
        database_oid=DATABASE_OID,
        settings={"max_connections": "100"},
    )
    one = np.ones(ACCESSES, dtype=np.uint32)
    kind = kinds_of(relation * 1_000_000 + block, POOL_BLOCKS, version=18, new=np.zeros(ACCESSES, dtype=bool))
    with EvidenceWriter(path, meta) as writer:
        writer.append(
            "accesses",
            {
                "time_ns": (np.arange(ACCESSES) * (SECONDS * 1_000_000_000 // ACCESSES)).astype(np.uint64),
                "pid": (1 + np.arange(ACCESSES) % 4).astype(np.uint32),
                "spc": one * 1663,
                "db": one * DATABASE_OID,
                "rel": (20_000 + relation).astype(np.uint32),
                "fork": np.zeros(ACCESSES, dtype=np.uint8),
                "block": block.astype(np.uint32),
                "kind": kind.astype(np.uint8),
                "strategy": np.zeros(ACCESSES, dtype=np.uint8),
                "flags": np.full(ACCESSES, 4, dtype=np.uint8),
                "scan": one * 0,
            },
        )
        count, ends = len(names), [law[0] for law in LAWS.values()]
        writer.append(
            "relations",
            {
                "db": [DATABASE_OID] * count,
                "database": ["shop"] * count,
                "schema": ["public"] * count,
                "name": names,
                "kind": ["r"] * count,
                "oid": [20_000 + number for number in range(count)],
                "spc": [1663] * count,
                "rel": [20_000 + number for number in range(count)],
                "table_oid": [20_000 + number for number in range(count)],
                "blocks_begin": ends,
                "blocks_end": ends,
                "fsm_blocks": [0] * count,
                "vm_blocks": [0] * count,
                "tuples_per_block": [0.0] * count,
            },
        )
    return read_trace(Observation(Evidence.open(path)))


@pytest.mark.slow
def test_a_long_trace_is_replayed_by_samples(long: Trace) -> None:
    """One page of 4 misses as all do, from one relation to the next, and the result says so."""
    whole, sampled, there = (
        TraceCurve(long, server(POOL_BLOCKS), plan).at([4_096, 16_384, 65_536])
        for plan in (
            ReplayPlan(),
            ReplayPlan(long_trace_accesses=ACCESSES),
            ReplayPlan(long_trace_accesses=ACCESSES, executor="processes:2"),
        )
    )
    assert np.abs(sampled.miss_ratio - whole.miss_ratio).max() < 0.003
    assert np.all((sampled.low <= whole.miss_ratio) & (whole.miss_ratio <= sampled.high))
    assert sampled.level == whole.level
    said = [reason for reason in sampled.reasons if reason.code == "pages-sampled"]
    assert len(said) == 1 and "±0.0" in said[0].text
    assert not any(reason.code == "pages-sampled" for reason in whole.reasons)
    assert numbers(there) == numbers(sampled)
