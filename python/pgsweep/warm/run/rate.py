"""How fast blocks can be read: a short sample of those that are to be read, or a rate that is assumed."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import msgspec

from pgsweep.records.warm import WarmRate
from pgsweep.warm.block_ranges import BlockRange, calls_of
from pgsweep.warm.files import FileReader
from pgsweep.warm.outcome import WorkOptions, WorkState
from pgsweep.warm.readers import PageCacheReader, PrewarmReader
from pgsweep.warm.work import Reader, Work

_STRETCHES = 16
_STRETCH_BYTES = 4 << 20
_MOST_SECONDS = 3.0


def assumed_rate(bytes_per_second: float) -> WarmRate:
    """Return a rate that the user gave."""
    return WarmRate(
        bytes_per_second=bytes_per_second, kind="assumed", why="by --assume-rate; nothing was read"
    )


def measure_rate(
    conninfo: str, pieces: Sequence[BlockRange], files: FileReader | None, block_bytes: int, connections: int
) -> WarmRate | None:
    """Return the rate at which a sample of the pieces could be read; None where there is nothing to read.

    The stretches are drawn at random over all blocks, so what is larger is drawn more often. They are read
    as a run reads, but in mode read, which leaves the pool alone.

    Args:
        conninfo: as libpq understands it.
        pieces: what is to be read.
        files: reads past the server; None through it.
        block_bytes: PostgreSQL's block size.
        connections: how many sessions read at once.
    """
    sample = draw(pieces, _STRETCH_BYTES // block_bytes)
    if not sample:
        return None
    options = WorkOptions(block_bytes=block_bytes, connections=connections, pool=False)

    def reader() -> Reader:
        return PrewarmReader(conninfo, "read") if files is None else PageCacheReader(files)

    stop = threading.Event()

    def long_enough(state: WorkState) -> None:
        # On a busy server the first stretch alone can take longer; without it there is no rate.
        if state.done_bytes > 0 and state.seconds > _MOST_SECONDS:
            stop.set()

    calls = calls_of(sample, _STRETCH_BYTES // block_bytes)
    outcome = Work(calls, reader, options).run(stop, long_enough)
    read_bytes = outcome.read_blocks * block_bytes
    if read_bytes == 0:
        return None
    return WarmRate(
        bytes_per_second=read_bytes / outcome.seconds,
        kind="measured",
        why="from a sample, by as many connections as a run; what lay in the page cache came faster",
        sample_bytes=read_bytes,
        sample_seconds=outcome.seconds,
    )


def draw(pieces: Sequence[BlockRange], stretch_blocks: int, *, seed: int = 1) -> list[BlockRange]:
    """Return disjoint stretches of the pieces, drawn at random over all their blocks."""
    chances = random.Random(seed)  # noqa: S311 - the same places each time, so that two plans can be compared
    chosen: dict[tuple[int, int], BlockRange] = {}
    weights = [piece.blocks for piece in pieces]
    for _ in range(_STRETCHES if sum(weights) else 0):
        [number] = chances.choices(range(len(pieces)), weights)
        piece = pieces[number]
        at = chances.randrange(-(-piece.blocks // stretch_blocks))
        blocks = min(stretch_blocks, piece.blocks - at * stretch_blocks)
        chosen[number, at] = msgspec.structs.replace(
            piece, first_block=piece.first_block + at * stretch_blocks, blocks=blocks
        )
    return list(chosen.values())
