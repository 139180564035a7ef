"""Huge pages for private servers: set aside beside those that the host has, and given back at the end.

The number before is kept in a file, so the next run gives back what a killed one left (host/reserve.py).
A lock on the kernel's own file keeps two of our runs from changing the number at once.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from pgsweep.commands import sudo
from pgsweep.errors import MissingAbility, NeedsRoot, PgsweepError
from pgsweep.host.hugepages import Pool, pool_file, read_pools
from pgsweep.host.reserve import STATE_DIRECTORY, Reserver
from pgsweep.pg.private.bindir import find_server
from pgsweep.pg.private.sharedmemory import ScratchServer
from pgsweep.units import format_count

_STATE: Final = STATE_DIRECTORY / "testbed"
_WAL_SEGMENT_BYTES: Final = 16 << 20
_LOCK_PATIENCE_SECONDS: Final = 60.0
_SPARE_PAGES: Final = 2


@contextmanager
def huge_pages_for(
    bindir: Path | None, settings: Mapping[str, str]
) -> Iterator[Callable[[str], dict[str, str]]]:
    """Set aside what a server with these settings needs, and give it back at the end.

    Yields:
        A function that returns the setting for `on` or `off`, and for `on` raises why there are none.
    """
    refused: PgsweepError | None = None
    with ExitStack() as closing:
        try:
            with ScratchServer(find_server(bindir), wal_segment_bytes=_WAL_SEGMENT_BYTES) as scratch:
                needed_bytes = scratch.requested_bytes(settings)
            closing.enter_context(huge_pages_set_aside(needed_bytes))
        except PgsweepError as error:
            refused = error

        def setting(state: str) -> dict[str, str]:
            if state == "on" and refused is not None:
                raise refused
            return {"huge_pages": state}

        yield setting


@contextmanager
def huge_pages_set_aside(size_bytes: int) -> Iterator[None]:
    """Set huge pages of the default size aside, beside those that there are, and give them back.

    Raises:
        MissingAbility: the kernel has none, or this user may not set any aside and too few are free.
        PgsweepError: the kernel gives fewer, or another run has them.
    """
    pool = _default_pool()
    pages = -(-size_bytes // pool.size_bytes) + _SPARE_PAGES
    file = pool_file(pool.size_bytes)
    if not os.access(file, os.W_OK):
        if pool.available < pages:
            raise NeedsRoot(
                f"{format_count(pages)} huge pages are needed and {format_count(pool.available)} are free",
                cause="this user may not set huge pages aside",
                hint=f"run as root, or: {sudo()}sysctl -w vm.nr_hugepages={pool.persistent + pages}",
            )
        yield
        return
    with _locked(file):
        reserver = Reserver(state_directory=_STATE)
        with suppress(PgsweepError):
            reserver.undo()  # what a killed run left
        pool = _default_pool()
        reserver.reserve(pool, pool.persistent + pages)
        try:
            yield
        finally:
            _give_back(reserver, pages)


def _give_back(reserver: Reserver, pages: int) -> None:
    try:
        reserver.undo()
    except PgsweepError:
        # Somebody else has changed the number since: only what was added is taken off.
        pool = _default_pool()
        pool_file(pool.size_bytes).write_text(str(max(0, pool.persistent - pages)))
        reserver.state_file.unlink(missing_ok=True)


def _default_pool() -> Pool:
    for pool in read_pools():
        if pool.is_default:
            return pool
    raise MissingAbility("this kernel has no huge pages", cause="it was built without hugetlbfs")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise PgsweepError(
                        "another run of pgsweep has set huge pages aside", hint="wait for it, then try again"
                    ) from error
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)
