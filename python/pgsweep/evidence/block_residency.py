"""Which blocks the page cache holds at the beginning and the end of a recording: the table `page_cache`.

At the end they are set against the pool, as it is at that moment: what both hold is held twice.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.errors import MissingAbility
from pgsweep.evidence.schema import TABLES, TWICE
from pgsweep.evidence.writer import EvidenceWriter
from pgsweep.host.cached_ranges import cached_ranges
from pgsweep.host.pages import pages_of_block
from pgsweep.pg.catalog.server import Server

NOT_RECORDED: Final = "page_cache_not_recorded"
"""The fact that says why it is not known which blocks the page cache holds."""

Pool = tuple[Mapping[str, NDArray[Any]], int]
"""Buffers, all or a sample, as columns `spc`, `db`, `rel`, `fork` and `block`; and how many are used."""


class BlockResidency:
    """Writes which blocks of the database and the shared catalogs the page cache holds.

    Args:
        server: that is observed.
        postmaster_pid: of the server on this host; None where it is not here or may not be looked into.
        writer: takes the rows.

    Attributes:
        facts: how much was held twice, or why there are no rows.
    """

    def __init__(self, server: Server, postmaster_pid: int | None, writer: EvidenceWriter) -> None:
        self._server = server
        self._postmaster_pid = postmaster_pid
        self._writer = writer
        self.facts: dict[str, str] = {}

    def begin(self, started: float) -> None:
        """Look at the page cache at the beginning.

        Args:
            started: the monotonic clock's seconds from which times count.

        Raises:
            EvidenceError: it cannot be written.
        """
        self._write(0, started)

    def end(self, started: float, look: Callable[[], Pool | None]) -> None:
        """Look at both caches at the end, one after the other.

        Args:
            started: as for `begin`.
            look: returns the pool; None where it cannot be read.

        Raises:
            EvidenceError: it cannot be written.
        """
        if self._postmaster_pid is None or self.facts:
            return
        pool = look()
        ranges = self._write(1, started)
        if pool is None or ranges is None:
            return
        block_bytes = self._server.block_size_bytes
        share = twice_share(pool[0], ranges, self._server.database_oid, pages_of_block(block_bytes))
        if share is not None:
            self.facts = {TWICE: str(round(share * pool[1]) * block_bytes)}

    def _write(self, sample: int, started: float) -> Mapping[str, NDArray[Any]] | None:
        """Write the rows and return them; what may not be seen whole is not written."""
        if self._postmaster_pid is None:
            return None
        server = self._server
        seconds = time.monotonic() - started
        try:
            found = cached_ranges(
                self._postmaster_pid,
                server.version_num,
                server.database_oid,
                block_bytes=server.block_size_bytes,
                segment_blocks=int(server.settings["segment_size"]),
            )
        except (MissingAbility, OSError) as error:
            self.facts = {NOT_RECORDED: error.message if isinstance(error, MissingAbility) else str(error)}
            return None
        columns = dataclasses.asdict(found)
        count = len(columns["blocks"])
        rows = {
            "sample": np.full(count, sample, np.int32),
            "seconds": np.full(count, max(seconds, 0.0)),
            **columns,
        }
        self._writer.append("page_cache", {name: rows[name] for name in TABLES["page_cache"]})
        return columns


def twice_share(
    buffers: Mapping[str, NDArray[Any]],
    ranges: Mapping[str, NDArray[Any]],
    database_oid: int,
    whole_pages: int,
) -> float | None:
    """Return the share of the buffers whose whole block is in the page cache too; None if not known.

    Args:
        buffers: as in `Pool`.
        ranges: as in the table `page_cache`.
        database_oid: whose files were looked at, with those of shared catalogs; only these buffers count.
        whole_pages: that a block has.
    """
    known = np.isin(buffers["db"], (0, database_oid))
    if not known.any():
        return None
    held = ranges["pages"] >= whole_pages
    inside = _inside(
        {name: buffers[name][known] for name in ("spc", "db", "rel", "fork", "block")},
        {name: column[held] for name, column in ranges.items()},
    )
    return float(inside.mean())


def _inside(buffers: Mapping[str, NDArray[Any]], ranges: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return which buffers hold a block that lies in one of the ranges."""
    names = ("spc", "db", "rel", "fork")
    together = np.stack(
        [np.concatenate([buffers[name], ranges[name]]).astype(np.uint32) for name in names], axis=1
    )
    _, file = np.unique(together, axis=0, return_inverse=True)
    file = file.ravel().astype(np.uint64)
    count = len(buffers["block"])
    begin = file[count:] << np.uint64(32) | ranges["first_block"]
    order = np.argsort(begin)
    begin, blocks = begin[order], ranges["blocks"][order].astype(np.uint64)
    wanted = file[:count] << np.uint64(32) | buffers["block"]
    at = np.searchsorted(begin, wanted, side="right") - 1
    known = at >= 0
    found = np.zeros(count, dtype=bool)
    found[known] = wanted[known] - begin[at[known]] < blocks[at[known]]
    return found
