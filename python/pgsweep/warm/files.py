"""Reading blocks into the page cache past the server: posix_fadvise(2) on its files, on its host.

POSIX_FADV_WILLNEED starts the reading of a whole stretch at once and returns (mm/readahead.c,
force_page_cache_readahead), so one thread keeps many requests in the device's queue. One byte at the end of
each stretch is then read, which waits for it: the pace stays that of the device, and nothing is copied.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pgsweep.host.datafiles import DataFiles, Fork
from pgsweep.warm.pieces import Piece
from pgsweep.warm.session import DROPPED, SHORTER, Failed, Read

FORK_NUMBERS = {"main": 0, "fsm": 1, "vm": 2, "init": 3}

Owner = tuple[str, int]
"""Database and oid of a relation, as a piece names it."""


class FileReader:
    """Has the kernel read pieces; may be asked by several threads.

    Args:
        files: the server's.
        places: tablespace, database and relfilenode of the relations that pieces name.
        block_bytes: PostgreSQL's block size.
        segment_blocks: blocks in a segment file.
    """

    def __init__(
        self,
        files: DataFiles,
        places: Mapping[Owner, tuple[int, int, int]],
        block_bytes: int,
        segment_blocks: int,
    ) -> None:
        self._paths: dict[tuple[Fork, int], str] = {
            (fork, segment): path
            for fork, segment, path in zip(files.forks, files.segments, files.paths, strict=True)
        }
        self._places = places
        self._block_bytes = block_bytes
        self._segment_blocks = segment_blocks

    def stretches(self, piece: Piece) -> list[tuple[str, int, int]]:
        """Return path, offset and length in bytes of a piece; nothing where its relation is not known."""
        place = self._places.get((piece.database, piece.oid))
        if place is None:
            return []
        found = []
        block = piece.first_block
        while block < piece.end_block:
            segment, inside = divmod(block, self._segment_blocks)
            blocks = min(piece.end_block - block, self._segment_blocks - inside)
            path = self._paths.get(((*place, FORK_NUMBERS[piece.fork]), segment))
            if path is None:
                break
            found.append((path, inside * self._block_bytes, blocks * self._block_bytes))
            block += blocks
        return found

    def read(self, pieces: Sequence[Piece]) -> Read:
        """Have the pieces read, and wait until they are."""
        blocks = 0
        failed: list[Failed] = []
        for piece in pieces:
            done, why = self._read(piece)
            blocks += done
            if why is not None:
                failed.append(
                    (
                        msgspec.structs.replace(
                            piece, first_block=piece.first_block + done, blocks=piece.blocks - done
                        ),
                        why,
                        None,
                    )
                )
        return Read(blocks, failed)

    def ask(self, pieces: Sequence[Piece]) -> None:
        """Ask the kernel for the pieces and do not wait; what cannot be opened is left to whoever reads."""
        descriptors: dict[str, int] = {}
        try:
            for piece in pieces:
                for path, offset, length in self.stretches(piece):
                    with contextlib.suppress(OSError):
                        if path not in descriptors:
                            descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                        os.posix_fadvise(descriptors[path], offset, length, os.POSIX_FADV_WILLNEED)
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)

    def _read(self, piece: Piece) -> tuple[int, str | None]:
        stretches = self.stretches(piece)
        if not stretches:
            return 0, DROPPED
        done_bytes = 0
        for path, offset, length in stretches:
            try:
                there = read_ahead(path, offset, length)
            except FileNotFoundError:
                return done_bytes // self._block_bytes, "it was dropped or rewritten since the plan was made"
            except OSError as error:
                return done_bytes // self._block_bytes, f"{os.strerror(error.errno or 0)}: {path}"
            done_bytes += there
            if there < length:
                break
        blocks = done_bytes // self._block_bytes
        return blocks, None if blocks == piece.blocks else SHORTER


def read_ahead(path: str, offset: int, length: int) -> int:
    """Have the kernel read a stretch of a file and wait for it; return how many bytes of it there are.

    Raises:
        OSError: the file cannot be opened or read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = max(0, min(length, os.fstat(descriptor).st_size - offset))
        if length > 0:
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)
            os.pread(descriptor, 1, offset + length - 1)
        return length
    finally:
        os.close(descriptor)


def places_of(
    relations: Iterable[tuple[str, int, tuple[int, int, int]]],
) -> dict[Owner, tuple[int, int, int]]:
    """Return the places by database and oid."""
    return {(database, oid): place for database, oid, place in relations}
