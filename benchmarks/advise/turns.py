"""The throughput of a server against that of another with the size observed, in turns of half a second.

What a machine that is shared with others gives changes by a third within minutes, and by a tenth within
seconds. The restart at another size alone takes half a minute. So a second server keeps the size observed,
with the same tables, memory and load. Its load is stopped but for its turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.advise.measure import Watch, settle, start
from benchmarks.advise.workloads import Load
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.filling import PoolContent
from pgsweep.testbed.workloads import Workload

_TURN_SECONDS = 0.5
_PART_SECONDS = 6.0
"""Of turns of both, after which there is a ratio. pgbench reports each second."""

_BACK_SECONDS = 3.0
"""The other server's load runs so long before the turns: its sessions and memory were idle."""


@contextmanager
def reference(
    cluster: Cluster,
    workload: Workload,
    scale: int,
    size_bytes: int,
    memory_bytes: int,
    settle_seconds: float,
) -> Iterator[Load]:
    """Give the load of a server that keeps a size, settled, and stopped until its turns."""
    start(cluster, size_bytes, PoolContent(), 2)
    with Load(cluster, workload, scale, 2) as load:
        with Watch(cluster) as watch:
            settle(watch, size_bytes, memory_bytes, settle_seconds)
        load.pause()
        yield load


def in_turns(own: Load, other: Load, seconds: float) -> list[tuple[float, float]]:
    """Return the transactions a second of a load and of the other in their turns, some seconds together each.

    Args:
        own: runs, and does so at the end.
        other: is stopped, and is so at the end.
        seconds: of all turns together.

    Raises:
        RuntimeError: pgbench has ended by itself.
    """
    own.pause()
    other.resume()
    time.sleep(_BACK_SECONDS)
    other.pause()
    begun = time.time()
    turns: dict[Load, list[tuple[float, float]]] = {own: [], other: []}
    while time.time() < begun + seconds:
        for load in (own, other):
            begin = time.time()
            load.resume()
            time.sleep(_TURN_SECONDS)
            load.pause()
            turns[load].append((begin, time.time()))
    own.resume()
    found = []
    for number in range(int(seconds / _PART_SECONDS)):
        begin = begun + number * _PART_SECONDS
        rates = [load.rate_within(begin, begin + _PART_SECONDS, turns[load]) for load in (own, other)]
        found.append((rates[0], rates[1]))
    return found
