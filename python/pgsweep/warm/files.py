"""Reading blocks into the page cache past the server, through its files, on its host.

A long stretch is sent to /dev/null (sendfile(2)), which copies nothing (fs/splice.c, splice_direct_to_actor;
drivers/char/mem.c, splice_write_null). The kernel reads ahead as for any sequential reader, by requests as
long as the device's readahead window, into folios of many pages (mm/readahead.c, page_cache_ra_order).

For a short stretch that would read more than was asked, and where the window is short it keeps too few
requests in the device's queue. There posix_fadvise(2), POSIX_FADV_WILLNEED, starts the reading and returns,
page by page (page_cache_ra_unbounded), which costs more. It is asked in small steps: where a step is longer
than the window or the device's largest request, the kernel drops the rest silently
(force_page_cache_ra). One byte at the end of each step is then read, which waits for it.

A read that a query waits for comes after all that the device was asked for before. So little is asked for
at a time beside a workload (`fetch`). Queries need the processors too: on a virtual disk the reader needed
3 ms of them for 128 MB that it sent away, and 34 ms by posix_fadvise. So the beginning of what is long is
sent away, for the kernel to read the rest ahead, and what it has not then is asked for.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep.host.datafiles import DataFiles, Fork
from pgsweep.host.kernel import device_of
from pgsweep.warm.block_ranges import BlockRange, Stretches
from pgsweep.warm.session import DROPPED, SHORTER, Failed, Read

FORK_NUMBERS = {"main": 0, "fsm": 1, "vm": 2, "init": 3}

_STEP_BYTES = 128 << 10
"""The kernel's default readahead window (VM_READAHEAD_PAGES, include/linux/mm.h)."""

_AHEAD_REQUESTS = 64
_AHEAD_BYTES = 1 << 20
"""The most that one thread has asked for and does not have yet. On a virtual disk that reads 500 MB a second
two threads with these limits had each read wait 0.6 to 0.9 ms on average; with 8 MB asked for at once it was
2 ms. Half of it took more time altogether, as each wait needs the processor anew."""

_LONG_BYTES = 4 << 20
_FETCHED_AS_LONG_BYTES = 1 << 20
_SENT_SHARE = 5
"""A fifth of a long stretch is sent away. The window begins at 256 kB for requests of 64 kB and grows four
times, later twice, with each window that is reached (mm/readahead.c, get_init_ra_size and
get_next_ra_size): so the rest is read ahead, and little beyond it."""

_LONG_WINDOW_BYTES = 1 << 20
"""A readahead window of this length keeps a device busy without being asked for more."""

Offsets: TypeAlias = NDArray[np.int64]
"""In a file, and lengths of stretches of it, in bytes or blocks."""

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

    def stretches(self, piece: BlockRange) -> list[tuple[str, int, int]]:
        """Return path, offset and length in bytes of a piece; empty if its relation is not known."""
        place = self._places.get((piece.database, piece.oid))
        if place is None:
            return []
        found = []
        fork = (*place, FORK_NUMBERS[piece.fork])
        block = piece.first_block
        end = block + piece.blocks
        while block < end:
            segment, inside = divmod(block, self._segment_blocks)
            blocks = min(end - block, self._segment_blocks - inside)
            path = self._paths.get((fork, segment))
            if path is None:
                break
            found.append((path, inside * self._block_bytes, blocks * self._block_bytes))
            block += blocks
        return found

    def read(self, pieces: Sequence[BlockRange]) -> Read:
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

    def asking(self, pieces: Sequence[BlockRange]) -> str:
        """Return what `fetch` asks for, for people to read."""
        return "\n".join(_advice(*stretch) for piece in pieces for stretch in self.stretches(piece))

    def reading(self, pieces: Sequence[BlockRange]) -> str:
        """Return the system calls of `read`, for people to read."""
        calls = []
        for piece in pieces:
            for path, offset, length in self.stretches(piece):
                file = Path(path)
                if file.exists() and length >= _LONG_BYTES and _has_long_window(file.stat().st_dev):
                    calls.append(f"sendfile(/dev/null, {path}, {offset}, {length})")
                else:
                    calls.append(_advice(path, offset, length))
        return "\n".join(calls)

    def fetch(self, pieces: Sequence[BlockRange]) -> None:
        """Have the kernel read the pieces, a little at a time; skip files that cannot be opened.

        The last few requests may be under way at the end.
        """
        steps = []
        with contextlib.ExitStack() as opened:
            for path, offsets, lengths in self._by_file(Stretches.of(pieces)):
                with contextlib.suppress(OSError):
                    offsets, lengths = _send_beginnings(path, offsets, lengths)
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    opened.callback(os.close, descriptor)
                    # What is waited for has been asked for: no readahead beside it.
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                    offsets, lengths = _divided(offsets, lengths, _STEP_BYTES)
                    steps.append(zip(repeat(descriptor), offsets.tolist(), lengths.tolist(), strict=False))
            with contextlib.suppress(OSError):
                _ask_a_little(chain.from_iterable(steps))

    def _by_file(self, stretches: Stretches) -> Iterator[tuple[str, Offsets, Offsets]]:
        """Yield path, offsets and lengths in bytes of the stretches that have files, in their order."""
        for group in stretches.by_fork():
            piece = group[0]
            place = self._places.get((piece.database, piece.oid))
            if place is None:
                continue
            fork = (*place, FORK_NUMBERS[piece.fork])
            block, blocks = _divided(group.first_block, group.blocks, self._segment_blocks)
            segment = block // self._segment_blocks
            for begin, end in pairwise([0, *(1 + np.flatnonzero(np.diff(segment))).tolist(), len(segment)]):
                path = self._paths.get((fork, int(segment[begin])))
                if path is not None:
                    inside = block[begin:end] % self._segment_blocks
                    yield path, inside * self._block_bytes, blocks[begin:end] * self._block_bytes

    def _read(self, piece: BlockRange) -> tuple[int, str | None]:
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
        status = os.fstat(descriptor)
        length = max(0, min(length, status.st_size - offset))
        long = length >= _LONG_BYTES and _has_long_window(status.st_dev)
        if not long or not _send_away(descriptor, offset, length):
            _ask(descriptor, offset, length)
            for step, step_length in _steps(offset, length):
                os.pread(descriptor, 1, step + step_length - 1)
        return length
    finally:
        os.close(descriptor)


def _send_away(descriptor: int, offset: int, length: int) -> bool:
    """Send a stretch to /dev/null; false where the file system cannot."""
    sink = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        end, sent = offset + length, 1
        while offset < end and sent > 0:  # nothing is sent where the file has become shorter
            sent = os.sendfile(sink, descriptor, offset, end - offset)
            offset += sent
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        return False
    finally:
        os.close(sink)
    return True


def _send_beginnings(path: str, offsets: Offsets, lengths: Offsets) -> tuple[Offsets, Offsets]:
    """Have the beginnings of long stretches read as by a sequential reader; return what is left of all.

    Raises:
        OSError: the file cannot be opened or read.
    """
    long = np.flatnonzero(lengths >= _FETCHED_AS_LONG_BYTES)
    if len(long) == 0:
        return offsets, lengths
    sent = np.zeros_like(lengths)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _has_long_window(os.fstat(descriptor).st_dev):
            for at in long.tolist():
                beginning = int(lengths[at]) // _SENT_SHARE // _STEP_BYTES * _STEP_BYTES
                if _send_away(descriptor, int(offsets[at]), beginning):
                    sent[at] = beginning
    finally:
        os.close(descriptor)
    return offsets + sent, lengths - sent


def _divided(first: Offsets, length: Offsets, most: int) -> tuple[Offsets, Offsets]:
    """Return stretches in their order, divided at the multiples of a number."""
    number = (first + length - 1) // most - first // most + 1
    if number.max(initial=1) == 1:
        return first, length
    place = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    begin = np.maximum(np.repeat(first, number), (np.repeat(first // most, number) + place) * most)
    end = np.minimum(np.repeat(first + length, number), (np.repeat(first // most, number) + place + 1) * most)
    return begin, end - begin


def _has_long_window(device_number: int) -> bool:
    """Whether a device reads so far ahead that long stretches are read best as by a sequential reader."""
    return _window_bytes(device_number) >= _LONG_WINDOW_BYTES


@functools.cache
def _window_bytes(device_number: int) -> int:
    device = device_of(device_number)
    return _STEP_BYTES if device is None else device.read_ahead_bytes


def _advice(path: str, offset: int, length: int) -> str:
    return f"posix_fadvise({path}, {offset}, {length}, POSIX_FADV_WILLNEED), {_STEP_BYTES} bytes a step"


def _ask_a_little(steps: Iterable[tuple[int, int, int]]) -> None:
    """Ask for steps, half of the most at a time; before each half but the first, wait for the one before.

    To wait for each step by itself would take a switch between processes for each.

    Args:
        steps: descriptor, offset and length of each.

    Raises:
        OSError: a file cannot be read.
    """
    requests = asked_bytes = 0
    last: tuple[int, int] | None = None
    before: tuple[int, int] | None = None
    for descriptor, offset, length in steps:
        if requests == _AHEAD_REQUESTS // 2 or asked_bytes + length > _AHEAD_BYTES // 2:
            if before is not None:
                os.pread(before[0], 1, before[1])
            before, requests, asked_bytes = last, 0, 0
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)
        last = descriptor, offset + length - 1
        requests += 1
        asked_bytes += length


def _ask(descriptor: int, offset: int, length: int) -> None:
    for step, step_length in _steps(offset, length):
        os.posix_fadvise(descriptor, step, step_length, os.POSIX_FADV_WILLNEED)


def _steps(offset: int, length: int) -> Iterator[tuple[int, int]]:
    end = offset + length
    for begin in range(offset, end, _STEP_BYTES):
        yield begin, min(_STEP_BYTES, end - begin)


def places_of(
    relations: Iterable[tuple[str, int, tuple[int, int, int]]],
) -> dict[Owner, tuple[int, int, int]]:
    """Return the places by database and oid."""
    return {(database, oid): place for database, oid, place in relations}
