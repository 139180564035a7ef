"""What the server's own times of its reads say of the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgsweep.advice.gather import advise_from
from pgsweep.evidence.store import TABLES, Evidence, EvidenceMeta
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.throughput.read_times import read_times
from pgsweep.sizing.throughput.timed_reads import timed_reads, waited_per_second


class Recorded:
    """Ten seconds of a database: 1000 misses a second that take some time each."""

    def __init__(
        self, microseconds: float, version_num: int = 170000, timing: str = "on", **host: str
    ) -> None:
        self.meta = EvidenceMeta(
            source="sql",
            seconds=10.0,
            server_version_num=version_num,
            database="shop",
            settings={"track_io_timing": timing},
            host=host,
        )
        reads = 10_000.0
        rows = [
            (0.0, "blks_read", 5.0),
            (0.0, "blk_read_time", 7.0),
            (10.0, "blks_read", 5.0 + reads),
            (10.0, "blk_read_time", 7.0 + reads * microseconds / 1000),
        ]
        self._timed: dict[str, Any] = {name: np.zeros(0) for name in TABLES["read_times"]}
        self._counters: dict[str, Any] = {
            "seconds": np.array([row[0] for row in rows]),
            "scope": np.array(["database"] * 4),
            "object": np.array(["shop"] * 4),
            "name": np.array([row[1] for row in rows]),
            "value": np.array([row[2] for row in rows]),
        }

    def table(self, name: str) -> dict[str, Any]:
        return self._counters if name == "counters" else self._timed


def timed(stretches: dict[tuple[float, float], dict[int, int]]) -> dict[str, Any]:
    """Return reads that took some nanoseconds, by the stretch in which they were timed."""
    rows = [
        (stretch, begin, end, 4 * ns // 5, ns + 1, count, ns * count)
        for stretch, ((begin, end), reads) in enumerate(stretches.items())
        for ns, count in (reads or {0: 0}).items()
    ]
    return {
        name: np.array(column)
        for name, column in zip(TABLES["read_times"], zip(*rows, strict=True), strict=True)
    }


EVIDENCE = Path(__file__).parents[1] / "answers" / "evidence"


def of(recorded: Recorded) -> Any:
    return read_times(Observation(recorded))  # type: ignore[arg-type]


def test_short_reads_are_copies_and_long_ones_are_the_disk() -> None:
    short, long = of(Recorded(3.0)), of(Recorded(5000.0))
    assert short.mean_seconds == pytest.approx(3e-6)
    assert short.disk_share[0] == 0
    assert short.disk_share[1] == pytest.approx((3 - 1) / (50 - 1))
    assert long.disk_share == (pytest.approx((5000 - 5) / (10_000 - 5)), 1.0)
    # A tenth of the misses at 2 microseconds less.
    assert of(Recorded(12.0)).disk_seconds(0.1, 2e-6) == pytest.approx(102e-6)


def test_a_copy_that_was_measured_narrows_it() -> None:
    known = of(Recorded(10.0, copy_nanoseconds="6000"))
    assert known.copy_seconds == (pytest.approx(4e-6), pytest.approx(12e-6))
    assert known.disk_share[0] == 0
    assert known.disk_share[1] == pytest.approx((10 - 4) / (50 - 4))


def test_from_18_on_they_are_waits() -> None:
    assert not of(Recorded(20.0)).waits
    waits = of(Recorded(20.0, version_num=180000))
    assert waits.waits
    assert waits.disk_share[0] == 0, "another process may have made the copies"
    assert of(Recorded(20.0)).disk_share[0] > 0


def test_nothing_is_known_without_timing() -> None:
    assert of(Recorded(20.0, timing="off")) is None
    assert timed_reads(Observation(Recorded(20.0, timing="off"))) is None  # type: ignore[arg-type]


def test_reads_that_the_recording_timed_stand_in_for_the_servers_own_times() -> None:
    recorded = Recorded(0.0, timing="off", read_times_added_nanoseconds="1000")
    # In two of the seconds 900 copies of 3 microseconds and 100 disk reads of 201; no read in the third.
    recorded._timed = timed({(0.0, 1.0): {4000: 900, 202_000: 100}, (5.0, 6.0): {4000: 900, 202_000: 100}})
    found = timed_reads(Observation(recorded))  # type: ignore[arg-type]
    assert found is not None
    assert found.reads == 2000
    assert found.seconds == pytest.approx(2.0)
    assert found.mean_seconds == pytest.approx((900 * 3e-6 + 100 * 201e-6) / 1000)
    assert found.median_seconds < 4e-6
    assert 150e-6 < found.p99_seconds <= 201.001e-6
    waited = waited_per_second(Observation(recorded))  # type: ignore[arg-type]
    assert waited is not None
    assert waited == pytest.approx(900 * 3e-6 + 100 * 201e-6)
    assert of(recorded).mean_seconds == pytest.approx(waited / 1000)
    recorded._timed = timed({(0.0, 1.0): {4000: 900}, (5.0, 6.0): {}})
    assert waited_per_second(Observation(recorded)) == pytest.approx(900 * 3e-6 / 2)  # type: ignore[arg-type]


def test_a_read_takes_no_less_than_nothing() -> None:
    recorded = Recorded(0.0, timing="off", read_times_added_nanoseconds="9000")
    recorded._timed = timed({(0.0, 1.0): {4000: 900}})
    found = timed_reads(Observation(recorded))  # type: ignore[arg-type]
    assert found is not None
    assert (found.mean_seconds, found.median_seconds) == (0.0, 0.0)


def test_few_reads_say_nothing() -> None:
    recorded = Recorded(0.0, timing="off")
    recorded._timed = timed({(0.0, 1.0): {4000: 99}})
    assert of(recorded) is None


def test_what_sessions_wait_today_is_what_the_server_measured() -> None:
    path = EVIDENCE / "trace-drops-18"
    observation = Observation(Evidence.open(path))
    times, reads = read_times(observation), observation.counters.rate("database", "shop", "blks_read")
    assert times is not None
    assert reads is not None
    # A trace without a throughput; no read from disk is predicted.
    advice = advise_from(path, None, memory_bytes=None, loss=None, seed=1, kept=False)
    today = next(point for point in advice.points if point.shared_buffers_bytes == 1 << 20)
    assert today.wait_low <= reads * times.mean_seconds <= today.wait_high
    assert today.wait_ratio == pytest.approx(reads * times.mean_seconds, rel=0.05)
    assert advice.copy_seconds == pytest.approx(times.mean_seconds)
