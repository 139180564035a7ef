"""Reading past the server: what the kernel was asked for is in the page cache afterwards, all of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgsweep._native import drop_page_cache, page_cache
from pgsweep.host.datafiles import DataFiles, Fork
from pgsweep.warm import files
from pgsweep.warm.block_ranges import BlockRange
from pgsweep.warm.files import FileReader, read_ahead
from tests.fix_process import wait_until

LENGTH = 48 << 20
BLOCK = 8192
FORK: Fork = (1663, 5, 16384, 0)


def piece_at(first_block: int, blocks: int) -> BlockRange:
    return BlockRange(
        database="shop",
        oid=1,
        schema="public",
        relation="t",
        kind="table",
        fork="main",
        first_block=first_block,
        blocks=blocks,
    )


def cached_bytes(path: Path) -> int:
    """Return how much of the file is in the page cache."""
    return int(page_cache([path])["cached_bytes"][0])


@pytest.mark.parametrize("window_bytes", [128 << 10, 8 << 20])
def test_a_long_stretch_of_a_cold_file_is_read_whole(
    window_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_window_bytes", lambda _: window_bytes)
    # One posix_fadvise(2) for all of it reads no more than the device's readahead window.
    path = tmp_path / "cold"
    with path.open("wb") as file:
        for megabyte in range(LENGTH >> 20):
            file.write(bytes([megabyte]) * (1 << 20))
        os.fsync(file.fileno())
    assert drop_page_cache([path]).tolist() == [0]
    if cached_bytes(path):
        pytest.skip("this file system keeps its files in memory")
    begin, length = 3 << 20, LENGTH - (5 << 20) + 100
    assert read_ahead(str(path), begin, length) == length
    # A busy device may have read the end of a step before its beginning, which is then still under way.
    wait_until(lambda: length <= cached_bytes(path), 30)
    # Nothing before, and the pages behind that the kernel adds at most.
    assert cached_bytes(path) <= LENGTH - begin
    assert read_ahead(str(path), LENGTH - 10, 100) == 10
    assert read_ahead(str(path), LENGTH + 10, 100) == 0


def test_little_is_asked_for_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the reads of queries do not wait long: of single blocks and of a long stretch."""
    path = tmp_path / "cold"
    path.write_bytes(bytes(LENGTH))
    os.sync()
    assert drop_page_cache([path]).tolist() == [0]
    if cached_bytes(path):
        pytest.skip("this file system keeps its files in memory")
    under_way: list[tuple[int, int]] = []
    most: list[tuple[int, int]] = []
    advise, read = os.posix_fadvise, os.pread

    def advised(descriptor: int, offset: int, length: int, advice: int) -> None:
        advise(descriptor, offset, length, advice)
        if advice == os.POSIX_FADV_WILLNEED:
            under_way.append((offset + length, length))
            most.append((len(under_way), sum(each for _, each in under_way)))

    def waited(descriptor: int, length: int, offset: int) -> bytes:
        while under_way.pop(0)[0] <= offset:
            pass
        return read(descriptor, length, offset)

    monkeypatch.setattr(os, "posix_fadvise", advised)
    monkeypatch.setattr(os, "pread", waited)
    reader = FileReader(
        DataFiles(forks=[FORK], segments=[0], paths=[str(path)]), {("shop", 1): FORK[:3]}, BLOCK, 131072
    )
    singles = [piece_at(first, 1) for first in range(0, 1000, 2)]
    reader.fetch(singles)
    assert len(most) == len(singles)
    assert max(number for number, _ in most) == 64
    wait_until(lambda: cached_bytes(path) == len(singles) * BLOCK, 30, "others than they are cached")
    most.clear()
    under_way.clear()
    reader.fetch([piece_at(1000, 4000)])
    assert max(length for _, length in most) == 1024 << 10
    wait_until(lambda: cached_bytes(path) == (len(singles) + 4000) * BLOCK, 30)


def test_how_far_a_device_reads_ahead_is_known(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    queue = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/queue/read_ahead_kb")
    if not queue.exists():
        pytest.skip("these files lie on no whole block device")
    assert files._window_bytes(number) == int(queue.read_text()) * 1024
    assert files._window_bytes(os.makedev(0, 1)) == 128 << 10


def test_a_sink_that_cannot_be_spliced_into_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    monkeypatch.setattr(os, "devnull", "/proc/self/comm")  # takes no splices
    try:
        assert not files._send_away(descriptor, 0, 8192)
    finally:
        os.close(descriptor)
