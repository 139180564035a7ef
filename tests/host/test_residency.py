"""How much of a file the page cache holds: both methods, page for page, and never a made-up number."""

from __future__ import annotations

import errno
import mmap
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgsweep._native import drop_page_cache, page_cache
from pgsweep.host import cgroup
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cluster import quiet_pair
from tests.fix_process import NOBODY, needs_cgroup, run_restricted, wait_until

CACHESTAT = 451
PAGE = mmap.PAGESIZE
BLOCK = 8192
GIB = 1 << 30


def has_cachestat() -> bool:
    return page_cache([])["method"] == "cachestat"


METHODS = ["mincore", "cachestat"]


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    """Each method that this kernel has."""
    if request.param == "cachestat" and not has_cachestat():
        pytest.skip("this kernel has no cachestat(2)")
    name: str = request.param
    return name


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a disk, not in memory, where pages can leave the cache."""
    made = subprocess.run(["mktemp", "-d", "-p", "/var/tmp"], check=True, capture_output=True, text=True)
    place = Path(made.stdout.strip())
    place.chmod(0o755)
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", place], check=True, capture_output=True, text=True
    ).stdout
    if kind == "tmpfs\n":
        pytest.skip("/var/tmp is not on a disk")
    yield place
    subprocess.run(["rm", "-rf", place], check=True)


def cold_file(path: Path, size_bytes: int, *, sparse: bool = False) -> Path:
    """Make a file of which nothing is cached."""
    with path.open("wb") as file:
        if sparse:
            file.truncate(size_bytes)
        else:
            file.write(random.Random(1).randbytes(size_bytes))
        file.flush()
        os.fsync(file.fileno())
    assert drop_page_cache([path]).tolist() == [0]
    return path


def cache_pages(path: Path, pages: list[int]) -> None:
    """Read these pages and no others."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for page in pages:
            os.pread(descriptor, 1, page * PAGE)
    finally:
        os.close(descriptor)


def test_both_methods_tell_the_very_pages_that_were_read(folder: Path) -> None:
    path = cold_file(folder / "file", 40 << 20)
    total = (40 << 20) // PAGE
    pages = sorted(random.Random(2).sample(range(total), 1000))
    cache_pages(path, pages)
    expected = np.zeros(total, dtype=np.uint8)
    expected[pages] = 1
    found = page_cache([path], maps=True)
    assert found["method"] == "mincore"
    assert found["first_block"].tolist() == [0, total * PAGE // BLOCK]
    assert np.array_equal(found["cached_pages"], expected.reshape(-1, BLOCK // PAGE).sum(axis=1))
    single = page_cache([path], maps=True, block_bytes=PAGE)
    assert np.array_equal(single["cached_pages"], expected)
    for name in METHODS:
        counted = page_cache([path], method=name)
        assert counted["cached_bytes"].tolist() == [1000 * PAGE]
        assert counted["size_bytes"].tolist() == [40 << 20]
        assert counted["method"] == (name if has_cachestat() else "mincore")


def test_looking_leaves_no_trace(folder: Path, method: str) -> None:
    path = cold_file(folder / "file", 8 << 20)
    os.utime(path, (0, 0))
    for maps in (False, True, False):
        found: Any = page_cache([path], method=method, maps=maps)
        assert found["cached_bytes"].tolist() == [0]
    assert path.stat().st_atime == 0


def test_blocks_of_large_files_are_at_their_places(folder: Path) -> None:
    """Across the pieces in which a file is mapped."""
    size = 2 * GIB + 3 * BLOCK + 100
    path = cold_file(folder / "file", size, sparse=True)
    pages = [0, GIB // PAGE - 1, GIB // PAGE, 2 * GIB // PAGE - 1, 2 * GIB // PAGE, size // PAGE]
    cache_pages(path, pages)
    for by in (None, "mincore"):
        found = page_cache([path], maps=True, method=by)
        assert found["first_block"].tolist() == [0, size // BLOCK + 1]
        cached = np.flatnonzero(found["cached_pages"]).tolist()
        assert cached == sorted({page * PAGE // BLOCK for page in pages})
    for counted in (found, page_cache([path], method="mincore"), page_cache([path])):
        assert counted["cached_bytes"].tolist() == [len(pages) * PAGE]


def test_stretches_cached_as_a_whole_or_not_at_all(folder: Path) -> None:
    """Their pages are not asked for one by one: the map must be the one that asking gives."""
    path = cold_file(folder / "file", (40 << 20) + 3 * PAGE)
    stretch = (4 << 20) // PAGE
    pages = [*range(stretch, 3 * stretch), 4 * stretch, *range(5 * stretch - 1, 6 * stretch + 1)]
    pages += range(10 * stretch, 10 * stretch + 3)
    # A kernel that pages out what seems idle (DAMON) may take one of them at any time.
    for _ in range(5):
        cache_pages(path, pages)
        quick = page_cache([path], maps=True, block_bytes=PAGE)
        thorough = page_cache([path], maps=True, block_bytes=PAGE, method="mincore")
        if np.flatnonzero(thorough["cached_pages"]).tolist() == pages:
            break
    else:
        raise AssertionError(np.flatnonzero(thorough["cached_pages"]).tolist())
    assert np.array_equal(quick["cached_pages"], thorough["cached_pages"])
    assert quick["cached_bytes"].tolist() == [len(pages) * PAGE]


def test_files_that_are_none_have_their_error(folder: Path, method: str) -> None:
    whole = folder / "whole"
    whole.write_bytes(b"x" * (BLOCK + 1))
    (folder / "empty").touch()
    os.mkfifo(folder / "pipe")
    paths = [folder / "gone", whole, folder / "empty", folder, folder / "pipe", Path("/dev/null")]
    found = page_cache(paths, method=method)
    assert found["error"].tolist() == [errno.ENOENT, 0, 0, errno.EISDIR, errno.EINVAL, errno.EINVAL]
    assert found["size_bytes"].tolist() == [-1, BLOCK + 1, 0, -1, -1, -1]
    assert found["cached_bytes"].tolist() == [0, BLOCK + 1, 0, 0, 0, 0]
    maps = page_cache(paths, maps=True)
    assert maps["first_block"].tolist() == [0, 0, 2, 2, 2, 2, 2]
    assert maps["cached_pages"].tolist() == [2, 1]
    assert drop_page_cache(paths[:4]).tolist() == [errno.ENOENT, 0, 0, errno.EISDIR]


def test_nothing_to_look_at() -> None:
    found = page_cache([], maps=True)
    assert found["size_bytes"].tolist() == []
    assert found["first_block"].tolist() == [0]


@pytest.mark.parametrize("block_bytes", [0, 3000, 1 << 20])
def test_impossible_blocks_are_refused(block_bytes: int) -> None:
    with pytest.raises(ValueError, match="block_bytes"):
        page_cache([], maps=True, block_bytes=block_bytes)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="method"):
        page_cache([], method="guess")


def test_many_files_keep_their_order(folder: Path, method: str) -> None:
    """More of them than a process may have open, in several threads."""
    paths = []
    for number in range(200):
        path = folder / str(number)
        path.write_bytes(b"x" * number)
        paths.append(path)
    for threads in (1, 7, None):
        found = page_cache(paths * 20, method=method, threads=threads)
        assert found["size_bytes"].tolist() == list(range(200)) * 20
        assert found["cached_bytes"].tolist() == list(range(200)) * 20


def test_files_cut_short_while_we_look(folder: Path) -> None:
    path = folder / "file"
    path.write_bytes(b"x" * (16 << 20))
    end = threading.Event()

    def cut() -> None:
        while not end.is_set():
            os.truncate(path, 0)
            os.truncate(path, 16 << 20)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        sizes = set()
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            found = page_cache([path] * 4, maps=True)
            assert found["error"].tolist() == [0] * 4
            blocks = np.diff(found["first_block"])
            assert np.array_equal(blocks, found["size_bytes"] // BLOCK)
            sizes.update(found["size_bytes"].tolist())
    finally:
        end.set()
        cutter.join()
    assert len(sizes) > 1, "the file was never cut while we looked"


def ask_as_nobody(path: Path, method: str, *, maps: bool = False) -> str:
    return run_restricted(
        """
        found = _native.page_cache([sys.argv[1]], method=sys.argv[2], maps=sys.argv[3] == "True")
        print(*found["size_bytes"], *found["cached_bytes"], errno.errorcode.get(found["error"][0], 0))
        """,
        path,
        method,
        maps,
        user=NOBODY,
    )


def test_who_may_not_know_gets_no_number(folder: Path, method: str) -> None:
    """mincore(2) calls all pages of others' files resident."""
    path = cold_file(folder / "file", 1 << 20)
    path.chmod(0o644)
    refused, nothing = f"{1 << 20} 0 EPERM", f"{1 << 20} 0 0"
    answer = ask_as_nobody(path, method)
    # Before the restriction cachestat(2) answered everybody truly.
    assert answer == refused or (method == "cachestat" and answer == nothing)
    assert ask_as_nobody(path, method, maps=True) == refused
    path.chmod(0o666)
    assert ask_as_nobody(path, method) == nothing
    path.chmod(0o600)
    assert ask_as_nobody(path, method) == "-1 0 EACCES"


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.ENOSYS])
def test_where_cachestat_is_refused_mincore_serves(folder: Path, refusal: int) -> None:
    path = cold_file(folder / "file", 1 << 20)
    cache_pages(path, [0, 5, 17])
    said = run_restricted(
        """
        found = _native.page_cache([sys.argv[1]])
        print(*found["cached_bytes"], *found["error"], found["method"])
        """,
        path,
        refuse=(CACHESTAT,),
        errno=refusal,
    )
    assert said == f"{3 * PAGE} 0 mincore"


def test_files_of_overlayfs_have_the_pages_of_the_file_below(folder: Path, method: str) -> None:
    """cachestat(2) finds nothing there, and says nothing of it."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    lower, upper, work, merged = (folder / name for name in ("lower", "upper", "work", "merged"))
    for place in (lower, upper, work, merged):
        place.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mounted = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, merged], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this kernel has no overlayfs, or does not let us mount one")
    try:
        path = cold_file(merged / "file", 1 << 20)
        cache_pages(path, [3, 8])
        found = page_cache([path], method=method)
        assert found["cached_bytes"].tolist() == [2 * PAGE]
        assert drop_page_cache([path]).tolist() == [0]
        assert page_cache([path], method=method)["cached_bytes"].tolist() == [0]
    finally:
        subprocess.run(["umount", merged], check=True)


#: Its bits, not its sum `pages_mem`, which in 1.2 is sometimes one more than there are bits.
PAGES_OF = "SELECT string_agg(databit::text, '' ORDER BY segment) FROM pgfincore(%s, 'main', true)"
PGFINCORE = Path("/usr/share/postgresql/15/extension/pgfincore.control")


@pytest.mark.skipif(not PGFINCORE.exists(), reason="needs pgfincore: apt-get install postgresql-15-pgfincore")
def test_blocks_are_those_of_pgfincore(debian15: Cluster) -> None:
    debian15.create_extensions("postgres", "pgfincore")
    with psycopg.connect(debian15.conninfo(), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE cold AS SELECT i, repeat('x', 900) t FROM generate_series(1, 30000) i"
        )
        connection.execute("CREATE INDEX ON cold (i)")
        connection.execute("CHECKPOINT")
        row = connection.execute(
            "SELECT pg_relation_filepath('cold'), pg_relation_filepath('cold_i_idx')"
        ).fetchone()
        assert row is not None
        paths = [debian15.data_directory / name for name in row]
        for path in paths:
            subprocess.run(["sync", path], check=True)
        drop_page_cache(paths)
        for path in paths:
            pages = path.stat().st_size // PAGE
            cache_pages(path, sorted(random.Random(3).sample(range(pages), pages // 5)))
        for relation, path in zip(("cold", "cold_i_idx"), paths, strict=True):
            seen, said = quiet_pair(
                lambda path=path: page_cache([path], maps=True, block_bytes=PAGE)["cached_pages"].tolist(),
                lambda relation=relation: connection.execute(PAGES_OF, (relation,)).fetchone(),
            )
            assert seen == [int(bit) for bit in said[0]]
            assert 0 < sum(seen) < len(seen), "all or nothing is cached"
            assert page_cache([path])["cached_bytes"].tolist() == [sum(seen) * PAGE]
        connection.execute("DROP TABLE cold")


def test_threads_that_the_system_refuses_are_done_without(folder: Path) -> None:
    """At RLIMIT_NPROC, which root does not mind: another user's process may start no thread."""
    paths = [cold_file(folder / f"file{number}", 1 << 20) for number in range(20)]
    for path in paths:
        path.chmod(0o666)
        cache_pages(path, [3])
    said = run_restricted(
        """
        import _thread
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        try:
            _thread.start_new_thread(print, ())
        except RuntimeError:
            found = _native.page_cache(sys.argv[1:], threads=8)
            print(sum(found["cached_bytes"]), *set(found["error"]))
        """,
        *paths,
        user=NOBODY,
    )
    assert said == f"{20 * PAGE} 0"


def test_changed_pages_are_counted_until_they_are_on_disk(folder: Path) -> None:
    path = folder / "file"
    with path.open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        seen = page_cache([path])
        if seen["method"] == "mincore":
            assert seen["dirty_bytes"].tolist() == seen["writeback_bytes"].tolist() == [-1]
            pytest.skip("this kernel has no cachestat(2)")
        assert 0 < seen["dirty_bytes"][0] + seen["writeback_bytes"][0] <= 1 << 20
        os.fsync(file.fileno())
    seen = page_cache([path, folder / "none"])
    assert seen["dirty_bytes"].tolist() == seen["writeback_bytes"].tolist() == [0, -1]
    assert page_cache([path], maps=True)["evicted_bytes"].tolist() == [-1], "pages of blocks are not counted"


@needs_cgroup
def test_pages_that_were_just_evicted_are_counted(folder: Path) -> None:
    """In a group of 48 MB a hot half stays, and what is read once after it pushes itself out."""
    if not has_cachestat():
        pytest.skip("this kernel has no cachestat(2)")
    path = cold_file(folder / "file", 128 << 20)
    group = cgroup.plan()
    group.make(48 << 20)
    try:
        assert page_cache([path])["evicted_bytes"].tolist() == [0]
        hot = 'for i in 1 2 3; do head -c 24M "$2" > /dev/null; done'
        once = 'dd if="$2" bs=1M skip=24 of=/dev/null status=none'
        words = ["sh", "-c", f'echo 0 > "$1"; {hot}; {once}', "sh", str(group.procs_file), str(path)]
        subprocess.run(words, check=True)
        # What is recent goes by the group's statistics, which are gathered every 2 s.
        wait_until(lambda: bool(page_cache([path])["evicted_bytes"][0] > 1 << 20), 6)
        seen = page_cache([path])
        assert seen["evicted_bytes"][0] <= (128 << 20) - seen["cached_bytes"][0]
    finally:
        drop_page_cache([path])
        group.remove()
