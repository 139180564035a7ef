"""Wait until the pool has filled, before what follows a change is recorded: `pgsweep verify`.

A restart empties the pool. Until it is full nothing is evicted, and no prediction can be compared with a
recording made meanwhile. So the fullness is looked at first, every two seconds: by pg_buffercache_summary, or
up to 15 by a count over pg_buffercache. Where no more pages come, all that is used fits, and nothing is
waited for; nor where it fills so slowly that it would not be full in time.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from pgsweep.errors import MissingAbility
from pgsweep.pg.catalog.buffercache import count_by_relation, used_buffers
from pgsweep.pg.catalog.server import read_server, require_buffercache
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.refusals import explained
from pgsweep.progress import Progress
from pgsweep.sizing.comparable import FULL
from pgsweep.units import BLOCK_BYTES, format_bytes, format_minutes, format_percent

LONGEST_SECONDS: Final = 600.0
"""How long is waited at most, as for a recording that ends by itself."""

_STILL_SECONDS: Final = 10.0
_GROWTH: Final = 0.002
"""Of the pool: a pool that gains less in `_STILL_SECONDS` is not filling."""

_PACE_SECONDS: Final = 20.0
"""From then on it is known how fast the pool fills; later it is slower."""

_EVERY_SECONDS: Final = 2.0


def wait_until_full(conninfo: str, *, progress: Progress, stop: threading.Event) -> float | None:
    """Wait while the pool fills, and return the share of its buffers in use; None where it cannot be seen.

    Args:
        conninfo: of the server that is to be recorded.
        progress: is told why it waits, and why it no longer does.
        stop: ends the wait.

    Raises:
        ConnectionFailed: the server cannot be reached, or has gone.
    """
    with connect(conninfo) as connection, explained():
        server = read_server(connection)
        blocks = max(server.shared_buffers_blocks, 1)
        begin = grown_at = time.monotonic()
        first = share = grown_share = _share(connection, blocks)
        told = False
        while share is not None and share < FULL and not stop.is_set():
            now = time.monotonic()
            if share - (grown_share or 0.0) >= _GROWTH:
                grown_at, grown_share = now, share
            why = ""
            if now - grown_at >= _STILL_SECONDS:
                why = "no longer fills"
            elif now - begin >= LONGEST_SECONDS:
                why = "is still filling"
            elif now - begin >= _PACE_SECONDS:
                needed_seconds = (FULL - share) / max(share - (first or 0.0), 1e-9) * (now - begin)
                if needed_seconds > LONGEST_SECONDS - (now - begin):
                    why = f"needs {format_minutes(needed_seconds)} more to fill, or longer"
            if why:
                progress.note(
                    f"the pool is not full ({format_percent(share)} of {format_bytes(blocks * BLOCK_BYTES)}) "
                    f"and {why}: recorded as it is"
                )
                break
            if not told:
                told = True
                progress.stage(f"waiting until the pool is full, {format_minutes(LONGEST_SECONDS)} at most")
                progress.note(f"the pool is not full yet ({format_percent(share)}): waiting while it fills")
            stop.wait(_EVERY_SECONDS)
            share = _share(connection, blocks)
        return share


def _share(connection: Connection, blocks: int) -> float | None:
    used = used_buffers(connection)
    if used is None:
        try:
            schema = require_buffercache(connection)
        except MissingAbility:
            return None
        used = int(count_by_relation(connection, schema)[:, 3:9].sum())
    return used / blocks
