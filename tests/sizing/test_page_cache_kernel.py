"""The simulated page cache against the kernel itself: the same reads, in a memory cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page_cache.kernel import Setting, compare, obstacle

SETTINGS = {
    "without readahead": Setting(
        blocks=6400, limit_bytes=28 << 20, exponent=0.8, reads=60_000, advice="random"
    ),
    "with readahead": Setting(blocks=6400, limit_bytes=28 << 20, exponent=0.95, reads=60_000),
    "with scans": Setting(
        blocks=6400, limit_bytes=24 << 20, exponent=0.8, reads=60_000, scan_every=12_000, advice="random"
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_hits_are_those_of_the_kernel(name: str, tmp_path: Path) -> None:
    why_not = obstacle(tmp_path)
    if why_not is not None:
        pytest.skip(why_not)
    found = compare(SETTINGS[name], tmp_path)
    # Other kernels and other loads of the disk: the benchmark demands .01.
    assert found.simulated == pytest.approx(found.kernel, abs=0.015)
    assert abs(found.fifo - found.kernel) > 0.02, "the setting does not tell policies apart"
