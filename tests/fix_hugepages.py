"""Huge pages for tests: one at a time on this machine, and the kernel's number is always put back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgsweep.errors import ClusterError
from pgsweep.host.hugepages import Pool, pool_file, read_pools
from pgsweep.pg.private.cluster import Cluster
from tests.fix_process import wait_until

MB = 1 << 20
PAGE = 2 * MB
LOCK = Path(tempfile.gettempdir()) / "pgsweep-hugepages.lock"

needs_2mb = pytest.mark.skipif(
    not any(pool.is_default and pool.size_bytes == PAGE for pool in read_pools()),
    reason="needs a kernel whose huge pages are of 2 MB",
)


class Pages:
    """The kernel's huge pages of the default size, while nobody else of us changes them."""

    def pool(self) -> Pool:
        return next(pool for pool in read_pools() if pool.is_default)

    def make_available(self, count: int) -> bool:
        """Change the pool so that exactly this number is available; return whether the kernel gave them."""
        pool = self.pool()
        pool_file(pool.size_bytes).write_text(str(pool.persistent - pool.available + count))
        return self.pool().available == count


@contextmanager
def locked_pages() -> Iterator[Pages]:
    """Hold the machine's lock on huge pages, and put their number back afterwards.

    Nobody else should use any: a server that ends gives its own back after its test has ended. Where a
    program does all the time, its pages stay.
    """
    pages = Pages()
    if os.geteuid() != 0 or not any(pool.is_default for pool in read_pools()):
        pytest.skip("changing the number of huge pages needs root and a kernel that has them")
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: pages.pool().free == pages.pool().total, 10)
        pool = pages.pool()
        try:
            yield pages
        finally:
            pool_file(pool.size_bytes).write_text(str(pool.persistent))


@contextmanager
def available_pages(count: int) -> Iterator[Pages]:
    """Make exactly the given number available."""
    with locked_pages() as pages:
        if not pages.make_available(count):
            pytest.skip("not enough memory in one piece for huge pages")
        yield pages


def start_with(pages: Pages, count: int, cluster: Cluster, settings: dict[str, str] | None = None) -> None:
    """Start a server with exactly the given number of pages; try again if another program took them."""
    for attempt in range(4):
        give(pages, count)
        try:
            cluster.restart(settings)
        except ClusterError:
            if attempt == 3:
                raise
        else:
            return


def give(pages: Pages, count: int) -> None:
    if not pages.make_available(count):
        pytest.skip("not enough memory in one piece for huge pages, or somebody else changes them")
