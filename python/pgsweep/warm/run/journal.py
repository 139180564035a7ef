"""The journal of a run: what was to be read, and which part is done, so that another run can go on.

JSON, one object a line: a header, the calls in their order, then one line for each call that is done. Lines
are only ever added, so whatever cuts the file short costs the last line at most. It is begun aside and
renamed, so that the journal of the run that is gone on with is never half replaced; it is locked while its
run is at work, and removed when all is done.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from pgsweep.decoded import stored_bytes
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.files import Aside, through_own_links
from pgsweep.pg.session.server_identity import ServerIdentity
from pgsweep.regular import TooLong, open_regular
from pgsweep.warm.block_ranges import BlockRange, Call

Into = Literal["pool", "page-cache", "both"]

SCHEMA = "pgsweep.warm-journal/1"

_LONGEST_HEADER_BYTES = 1 << 20
_LARGEST_BYTES = 1 << 30
"""A piece takes about 200 bytes, so this is a journal of millions of stretches."""

_LONGEST_LINE_BYTES = 64 << 20


class RunKey(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies a run: the server, and the selection that is warmed.

    Attributes:
        system_identifier: of the cluster; nothing where the role may not ask.
        host: as libpq says where it was reached, as is port.
        relations: as they were named, sorted, as are schemas; nothing for all of the database.
        server: which of those with this system identifier; nothing in journals of earlier versions.
    """

    system_identifier: str | None
    host: str
    port: int
    database: str
    relations: list[str]
    schemas: list[str]
    every_database: bool
    into: Into
    server: ServerIdentity | None = None


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the run was about.

    Attributes:
        started_us: since when the pool is in use, in the server's own microseconds: it was empty then.
        calls: how many follow; nothing in journals of versions that did not count them.
    """

    schema: str = SCHEMA
    server: str
    started_us: int
    block_size_bytes: int
    into: Into
    mode: str
    run: RunKey | None = None
    calls: int | None = None


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line after the header; a call names its cache, as the two are carried out one after the other."""

    call: int | None = None
    cache: str = ""
    pieces: list[BlockRange] = []
    done: int | None = None
    read_blocks: int = 0
    undone: bool = False


class Journal:
    """Writes one.

    Args:
        path: is replaced.
        header: what the run is about; the number of calls is put in.
        pool: what is to be done in the pool.
        page_cache: and after that in the page cache.

    Raises:
        UsageError: what is there is not a journal, or another run is at work and keeps it.
        PgsweepError: it cannot be written.
    """

    def __init__(
        self, path: Path, header: Header, pool: Iterable[Call], page_cache: Iterable[Call] = ()
    ) -> None:
        self.path = path
        if path.exists() and not path.is_file():  # a device would be replaced, and removed at the end
            raise UsageError(
                f"`{path}` is not a regular file, so no journal can be kept in it",
                hint="name a file in a folder of yours: --journal FILE",
            )
        if path.exists() and path.stat().st_size:
            _require_ours(path)
        if is_held(path):
            raise UsageError(
                f"the journal `{path}` is kept by another run, which is at work",
                hint="let it end, or name another place: --journal FILE",
            )
        try:
            aside = Aside(through_own_links(path), buffered=False)
        except OSError as error:
            raise self._unwritable(error) from error
        self._file: BinaryIO = aside.file
        try:
            lines = [
                msgspec.json.encode(_Line(call=call.number, cache=cache, pieces=list(call.pieces)))
                for cache, calls in (("pool", pool), ("page cache", page_cache))
                for call in calls
            ]
            self._write(msgspec.json.encode(msgspec.structs.replace(header, calls=len(lines))), *lines)
            aside.commit()
        except BaseException as error:
            aside.discard()
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise

    def done(self, call: Call, read_blocks: int) -> None:
        """Write down that a call is done."""
        self._write(msgspec.json.encode(_Line(done=call.number, read_blocks=read_blocks)))

    def undone(self) -> None:
        """Record that what was done is lost: the server was restarted."""
        self._write(msgspec.json.encode(_Line(undone=True)))

    def close(self, *, remove: bool) -> None:
        """Close the journal; remove it if all is done."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def _write(self, *lines: bytes) -> None:
        if not lines:
            return
        try:
            # A disk that is nearly full takes a part without an error, and refuses the rest.
            rest = memoryview(b"".join(line + b"\n" for line in lines))
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> PgsweepError:
        return PgsweepError(
            f"cannot write the journal `{self.path}`: {error.strerror}",
            hint="name another place: --journal FILE",
        )


def _require_ours(path: Path) -> None:
    """Raise an error if the file is not a journal, because a run replaces it and removes it at the end.

    Raises:
        UsageError: it is something else, or a newer pgsweep's.
    """
    try:
        read_header(path)
    except UsageError as error:
        raise UsageError(
            f"`{path}` is not replaced: it is not a journal of `pgsweep warm run`",
            cause=error.cause,
            hint="name another file, or remove this one",
        ) from error


def is_held(path: Path) -> bool:
    """Return whether a run is at work that keeps this journal."""
    try:
        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class RemainingRanges(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal leaves to do.

    Attributes:
        pool, page_cache: pieces in their order.
        done_blocks: of the calls that are done.
    """

    header: Header
    pool: list[BlockRange]
    page_cache: list[BlockRange]
    done_blocks: int


def read_journal(path: Path, started_us: int | None = None) -> RemainingRanges:
    """Return what is left to do.

    Args:
        path: of the journal.
        started_us: since when the pool is in use; where that is not what the header says, the pool has
            lost what was read, and all of it is left to do.

    Raises:
        UsageError: it is not a journal, one of a newer version, or one that lacks calls.
    """
    header = read_header(path)
    calls: dict[int, tuple[str, list[BlockRange]]] = {}
    done: dict[int, int] = {}
    for text in itertools.islice(_read_lines(path), 1, None):
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.DecodeError, RecursionError):
            continue  # the last one, cut short
        if not all(map(_is_possible, line.pieces)):
            raise UsageError(
                f"the journal `{path}` is damaged",
                cause="it names blocks that no relation can have",
                hint="begin anew without --resume",
            )
        if line.call is not None:
            calls[line.call] = (line.cache, line.pieces)
        if line.done is not None:
            done[line.done] = line.read_blocks
        if line.undone:
            done = _outside_pool(calls, done)
    if header.calls is not None and len(calls) != header.calls:
        raise UsageError(
            f"the journal `{path}` is cut short",
            cause=f"it has {len(calls)} of the {header.calls} calls that its run had to do",
            hint="begin anew without --resume",
        )
    if started_us not in (None, header.started_us):
        done = _outside_pool(calls, done)
    left = [entry for number, entry in sorted(calls.items()) if number not in done]
    return RemainingRanges(
        header=header,
        pool=[piece for cache, pieces in left if cache == "pool" for piece in pieces],
        page_cache=[piece for cache, pieces in left if cache != "pool" for piece in pieces],
        done_blocks=sum(done.values()),
    )


def _outside_pool(calls: dict[int, tuple[str, list[BlockRange]]], done: dict[int, int]) -> dict[int, int]:
    """Return the blocks of those calls that a restart of the server did not undo."""
    return {n: blocks for n, blocks in done.items() if n in calls and calls[n][0] != "pool"}


def _is_possible(piece: BlockRange) -> bool:
    """Return whether a relation can have these blocks (Oid, postgres_ext.h; MaxBlockNumber, block.h)."""
    return 0 <= piece.oid < 2**32 and piece.first_block >= 0 < piece.blocks and piece.end_block < 2**32


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines; one that is too long is that of no journal, and what comes after it is left out."""
    try:
        with open_regular(path) as file:
            if stored_bytes(file) > _LARGEST_BYTES:
                raise TooLong(errno.EFBIG, f"it has more than {_LARGEST_BYTES} bytes", str(path))
            while len(line := file.readline(_LONGEST_LINE_BYTES)) < _LONGEST_LINE_BYTES and line:
                yield line
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read the journal `{path}`: {error.strerror}",
        hint="a run that is finished has removed its journal; begin anew without --resume",
    )


def read_header(path: Path) -> Header:
    """Return what the run of a journal was about.

    Raises:
        UsageError: it is not a journal, or one of a newer version.
    """
    try:
        with open_regular(path) as file:
            line = file.readline(_LONGEST_HEADER_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"`{path}` is not a journal of `pgsweep warm run`",
            cause=str(error),
            hint="name the file that the stopped run named",
        ) from error
    if header.schema != SCHEMA:
        raise UsageError(
            f"`{path}` is a journal that this pgsweep does not know",
            cause=f'its schema is "{header.schema}"',
            hint="use the pgsweep that wrote it, or begin anew without --resume",
        )
    return header
