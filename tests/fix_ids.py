"""Traces of page numbers alone, and the servers that they could be of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pgsweep.evidence.schema import EvidenceMeta
from pgsweep.sizing.observed import Server
from pgsweep.sizing.traces.accesses import Trace


def server(pool_blocks: int, *, version: int = 18, lost_events: int = 0) -> Server:
    """Return a server with a pool of that size; 0 where it is not known."""
    return Server.of(
        EvidenceMeta(
            source="trace",
            server_version_num=version * 10000,
            shared_buffers_blocks=pool_blocks,
            lost_events=lost_events,
        )
    )


def from_ids(pages: NDArray[np.uint32], seconds: NDArray[np.float64]) -> Trace:
    """Return a trace of one group, with as many pages as it names, without rings; no miss is known."""
    count = int(pages.max()) + 1 if len(pages) else 0
    none = np.zeros(0, dtype=np.uint32)
    return Trace(
        pages=pages,
        seconds=seconds,
        duration_seconds=float(seconds[-1] - seconds[0]) if len(seconds) else 0.0,
        flags=np.zeros(len(pages), dtype=np.uint8),
        backend=np.zeros(len(pages), dtype=np.uint32),
        owner_access=np.zeros(0, dtype=np.uint64),
        owner=none,
        owner_blocks=none,
        page_group=np.zeros(count, dtype=np.int64),
        group_pages=np.array([float(count)]),
        counted=np.ones(len(pages), dtype=bool),
        missed=np.zeros(len(pages), dtype=bool),
        new_page=np.zeros(count, dtype=bool),
    )
