"""Huge pages for a measurement, given back at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")


@contextmanager
def huge_pages_set_aside(pages: int) -> Iterator[None]:
    """Set huge pages aside beside those that there are, and give them back.

    Raises:
        RuntimeError: the kernel gives fewer.
    """
    before = int(HUGE_PAGES.read_text())
    HUGE_PAGES.write_text(str(before + pages))
    try:
        if int(HUGE_PAGES.read_text()) < before + pages:
            raise RuntimeError(f"the kernel gives {HUGE_PAGES.read_text().strip()} huge pages only")
        yield
    finally:
        # Not `before`: others may have changed it meanwhile.
        HUGE_PAGES.write_text(str(max(0, int(HUGE_PAGES.read_text()) - pages)))
