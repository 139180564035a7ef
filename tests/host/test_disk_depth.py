"""How long reads of a disk take at each depth: on the disk of this machine, and when it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pgsweep._native import drop_page_cache, page_cache, timed_reads
from pgsweep.host.disk_depth import MOST_READS, disk_latencies, measured
from tests.fix_process import busyness


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("first", "second")]
    for file in made:
        with file.open("wb") as opened:
            opened.write(os.urandom(6 << 20))
            os.fsync(opened.fileno())
    return made


def test_a_real_disk_has_a_latency_at_each_depth(files: list[Path]) -> None:
    paths = [str(file) for file in files]
    found, why = disk_latencies([*paths, str(files[0].parent / "dropped")])
    assert (found, why) == ([], "all: fewer than 600 blocks of relations are not in the page cache")
    drop_page_cache(files)
    begin = time.monotonic()
    found, why = disk_latencies(paths)
    if "O_DIRECT" in why:
        pytest.skip(why)
    assert time.monotonic() - begin < 5.0 * busyness(), "0.9 s; the limit is for a busy machine"
    depths = [one.depth for one in found]
    assert depths == [1, 2, 4, 8, 16, 32][: len(depths)]
    assert bool(why) == (len(depths) < 6)
    for one in found:
        # 1536 blocks for six depths.
        assert 3 <= one.reads <= 256
        assert 1e-6 < one.seconds < 1.0
        assert 0 <= one.error_seconds < one.seconds
    left = page_cache(paths, maps=False, block_bytes=8192)["cached_bytes"]
    assert int(left.sum()) == 0, "nothing is brought into the page cache"
    # What many are served at once is no less than one of them is alone, by far; unless others use the disk
    # during some of the reads, which does not last for several attempts.
    for _ in range(5):
        if all(one.depth / one.seconds > 0.5 / found[0].seconds for one in found):
            return
        found, _ = disk_latencies(paths)
    pytest.fail(str(found))


def test_reads_of_what_is_not_there(files: list[Path]) -> None:
    with pytest.raises(FileNotFoundError):
        timed_reads([files[0].parent / "none"], [0], [0], block_bytes=8192, depth=1, seconds=1.0)
    with pytest.raises(OSError, match="Invalid argument"):
        timed_reads(files, [0], [0], block_bytes=8192, depth=65, seconds=1.0)
    with pytest.raises(ValueError, match="seconds"):
        timed_reads(files, [0], [0], block_bytes=8192, depth=1, seconds=-1.0)


@pytest.mark.parametrize(
    ("channels", "seconds", "depths", "words"),
    [
        (64, 1e-4, [1, 2, 4, 8, 16, 32], ""),
        # One alone serves no more with two in flight, so no more is asked of it.
        (
            1,
            1e-2,
            [1, 2],
            "depth 4 and more: at 2 reads took 2.0 times as long as one alone, and were no more",
        ),
        (4, 1e-4, [1, 2, 4, 8], "depth 16 and more: at 8 reads took 2.0 times"),
        (2.5, 1e-4, [1, 2, 4, 8], "depth 16 and more: at 8 reads took 3.2 times as long as one alone"),
        (1, 0.1, [], "depth 1 and more: fewer than 3 reads"),
    ],
)
def test_a_saturated_disk_is_not_asked_for_more(
    channels: float, seconds: float, depths: list[int], words: str
) -> None:
    seen: list[int] = []

    def device(numbers: NDArray[np.int64], depth: int) -> NDArray[np.float64]:
        """Answer as a disk does that serves that number at once, in 0.05 s."""
        seen.extend(numbers.tolist())
        latency = seconds * max(1.0, depth / channels)
        return np.full(min(len(numbers), int(0.05 / latency * depth)), latency)

    found, why = measured(device, 100_000)
    assert [one.depth for one in found] == depths
    assert why.startswith(words) and bool(why) == bool(words)
    assert len(seen) == len(set(seen)) <= 6 * MOST_READS, "no block is read twice"
