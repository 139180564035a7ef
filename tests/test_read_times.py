"""What the server's own times of its reads say of the disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pgsweep.evidence.store import EvidenceMeta
from pgsweep.sizing.read_times import read_times


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
        self._counters: dict[str, Any] = {
            "seconds": np.array([row[0] for row in rows]),
            "scope": np.array(["database"] * 4),
            "object": np.array(["shop"] * 4),
            "name": np.array([row[1] for row in rows]),
            "value": np.array([row[2] for row in rows]),
        }

    def table(self, _: str) -> dict[str, Any]:
        return self._counters


def of(recorded: Recorded) -> Any:
    return read_times(recorded)  # type: ignore[arg-type]


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
