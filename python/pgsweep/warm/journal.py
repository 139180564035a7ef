"""The journal of a run: what was to be read, and what of it is done, so that another run can go on.

JSON, one object a line: a header, the calls in their order, then one line for each call that is done. Lines
are only ever added, so whatever cuts the file short costs the last line at most. It is removed when all is
done.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.warm.pieces import Call, Piece

Into = Literal["pool", "page-cache", "both"]

SCHEMA = "pgsweep.warm-journal/1"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the run was about.

    Attributes:
        started_us: when the server was started, in its own microseconds: after another start its pool is
            empty.
    """

    schema: str = SCHEMA
    server: str
    started_us: int
    block_size_bytes: int
    into: Into
    mode: str


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line after the header; a call names its cache, as the two are carried out one after the other."""

    call: int | None = None
    cache: str = ""
    pieces: list[Piece] = []
    done: int | None = None
    read_blocks: int = 0
    undone: bool = False


class Journal:
    """Writes one; `begin` comes first.

    Args:
        path: is written over.

    Raises:
        PgsweepError: it cannot be written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        try:
            self._file: BinaryIO = path.open("wb", buffering=0)
        except OSError as error:
            raise PgsweepError(
                f"cannot write the journal `{path}`: {error.strerror}",
                hint="name another place: --journal FILE",
            ) from error
        self._write(msgspec.json.encode(header))

    def add(self, cache: str, calls: list[Call]) -> None:
        """Write down what is to be done in one cache."""
        lines = [
            msgspec.json.encode(_Line(call=call.number, cache=cache, pieces=list(call.pieces)))
            for call in calls
        ]
        self._write(*lines)

    def done(self, call: Call, read_blocks: int) -> None:
        """Write down that a call is done."""
        self._write(msgspec.json.encode(_Line(done=call.number, read_blocks=read_blocks)))

    def undone(self) -> None:
        """Write down that what was done is lost: the server was restarted."""
        self._write(msgspec.json.encode(_Line(undone=True)))

    def close(self, *, remove: bool) -> None:
        """Close it; where all is done it has no more use."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def _write(self, *lines: bytes) -> None:
        if not lines:
            return
        try:
            self._file.write(b"".join(line + b"\n" for line in lines))
        except OSError as error:
            raise PgsweepError(
                f"cannot write the journal `{self.path}`: {error.strerror}",
                hint="name another place: --journal FILE",
            ) from error


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal leaves to do.

    Attributes:
        pool, page_cache: pieces in their order.
        done_blocks: of the calls that are done.
    """

    header: Header
    pool: list[Piece]
    page_cache: list[Piece]
    done_blocks: int


def read_journal(path: Path, started_us: int | None = None) -> Left:
    """Return what is left to do.

    Args:
        path: of the journal.
        started_us: when the server was started; where that is not what the header says, the pool has lost
            what was read, and all of it is left to do.

    Raises:
        UsageError: it is no journal, or one of a newer version.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(
            f"cannot read the journal `{path}`: {error.strerror}",
            hint="a run that is finished has removed its journal; begin anew without --resume",
        ) from error
    try:
        header = msgspec.json.decode(lines[0], type=Header)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"`{path}` is no journal of `pgsweep warm run`",
            cause=str(error),
            hint="name the file that the stopped run told of",
        ) from error
    if header.schema != SCHEMA:
        raise UsageError(
            f"`{path}` is a journal that this pgsweep does not know",
            cause=f'its schema is "{header.schema}"',
            hint="use the pgsweep that wrote it, or begin anew without --resume",
        )
    calls: dict[int, tuple[str, list[Piece]]] = {}
    done: dict[int, int] = {}
    for text in lines[1:]:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError:
            continue  # the last one, cut short
        if line.call is not None:
            calls[line.call] = (line.cache, line.pieces)
        if line.done is not None:
            done[line.done] = line.read_blocks
        if line.undone:
            done = {number: blocks for number, blocks in done.items() if calls[number][0] != "pool"}
    if started_us not in (None, header.started_us):
        done = {number: blocks for number, blocks in done.items() if calls[number][0] != "pool"}
    left = [entry for number, entry in sorted(calls.items()) if number not in done]
    return Left(
        header=header,
        pool=[piece for cache, pieces in left if cache == "pool" for piece in pieces],
        page_cache=[piece for cache, pieces in left if cache != "pool" for piece in pieces],
        done_blocks=sum(done.values()),
    )
