"""Input files: found, opened, decompressed, and read in pieces that hold whole records.

A piece is what one transaction copies. Where it begins and ends depends on the bytes of the file and the size
of a piece alone, so a run that resumes finds the same pieces.
"""

from __future__ import annotations

import glob
import gzip
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from pgsweep._native import RecordSplitter
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load.options import Format, LoadOptions
from pgsweep.plain import shell_word

BLOCK_BYTES: Final = 1 << 20
STDIN: Final = "-"

_COMPRESSIONS: Final = {".gz": "gz", ".zst": "zst", ".xz": "xz"}
_FORMATS: Final[dict[str, Format]] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".copy": "binary",
}
_UTF8_MARK: Final = b"\xef\xbb\xbf"
_LEAST_STEP_BYTES: Final = 4096
_LONGEST_HEADER_BYTES: Final = 16 << 20


class InputError(PgsweepError):
    """A file cannot be read, or is not what it should be."""


class ChangedFile(InputError):
    """A file is not as it was when the load began."""


class Input(msgspec.Struct, frozen=True):
    """One input file.

    Attributes:
        path: absolute, or `-`.
        number: its place among the files of the load.
        identity: size, time of the last change and inode; None for what is not a plain file.
    """

    path: str
    number: int
    format: Format
    compression: str | None
    size_bytes: int | None
    identity: tuple[int, int, int] | None

    @property
    def name(self) -> str:
        """The name for messages."""
        return "standard input" if self.path == STDIN else self.path


@dataclass(frozen=True)
class Chunk:
    """One piece of a file.

    Attributes:
        parts: the bytes for COPY, whole records.
        records: how many; None where only the server can count them.
        source_bytes: of the uncompressed file.
        first_line: line of the file at which it begins, from 1.
        checksum: of the bytes, where the file cannot be known again otherwise.
    """

    file: int
    piece: int
    parts: Sequence[bytes | memoryview]
    records: int | None
    source_bytes: int
    first_line: int
    checksum: int = 0


def find_inputs(names: Sequence[str], options: LoadOptions) -> list[Input]:
    """Return the files that names and patterns mean, in their order.

    Raises:
        UsageError: there is no such file, or its format is not known.
    """
    paths: list[str] = []
    for name in names:
        if name == STDIN:
            paths.append(name)
        elif Path(name).exists():
            paths.append(str(Path(name).absolute()))
        else:
            found = sorted(glob.glob(name)) if glob.has_magic(name) else []  # noqa: PTH207
            if not found:
                raise UsageError(
                    f"there is no file `{name}`", hint="name files, patterns in quotes, or - for stdin"
                )
            paths += [str(Path(path).absolute()) for path in found]
    if paths.count(STDIN) > 1:
        raise UsageError("standard input is named twice", hint="leave one `-` out")
    inputs = [_input(path, number, options) for number, path in enumerate(paths)]
    kinds = {entry.format for entry in inputs}
    if len(kinds) > 1:
        raise UsageError(
            f"the files have different formats: {', '.join(sorted(kinds))}",
            hint="load them one format at a time",
        )
    return inputs


def _input(path: str, number: int, options: LoadOptions) -> Input:
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    if compression is not None:
        suffixes.pop()
    kind = options.format or (_FORMATS.get(suffixes[-1]) if suffixes else None)
    if kind is None:
        if path != STDIN:
            raise UsageError(f"the name of `{path}` does not say its format", hint="name it: --format csv")
        kind = "csv"
    identity = None
    if path != STDIN:
        try:
            identity = _identity(os.stat(path))  # noqa: PTH116
        except OSError as error:
            raise InputError(f"cannot read `{path}`: {error.strerror}") from error
    if kind == "parquet" and (identity is None or compression is not None):
        raise UsageError(
            f"`{path}` cannot be read as Parquet",
            cause="a Parquet file is read from its end, so it must be a plain file",
            hint="write it to a file first",
        )
    return Input(path, number, kind, compression, None if identity is None else identity[0], identity)


def _identity(status: os.stat_result) -> tuple[int, int, int] | None:
    return (status.st_size, status.st_mtime_ns, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def check_unchanged(entry: Input, *, resuming: bool = False) -> None:
    """Refuse a file that is not as it was when the load began.

    Args:
        resuming: an earlier run has begun the load, and it stays begun.

    Raises:
        ChangedFile: it has grown, was written to, or was replaced.
        InputError: it cannot be read.
    """
    if entry.identity is None:
        return
    try:
        now = _identity(os.stat(entry.path))  # noqa: PTH116
    except OSError as error:
        raise InputError(f"cannot read `{entry.path}`: {error.strerror}") from error
    if now == entry.identity:
        return
    message = f"`{entry.path}` has changed since the load began: {_difference(entry.identity, now)}"
    if not resuming:
        raise ChangedFile(
            message,
            cause="it is still being written, or another file has its name",
            hint="wait until it is whole, then load it again",
        )
    hint = "undo the load: pgsweep load --rollback TABLE; then load the file again"
    if now is not None and (now[0], now[2]) == (entry.identity[0], entry.identity[2]):
        hint = (
            "if its content is the same, give it its old time: touch -d "
            f"{_time(entry.identity[1])} {shell_word(entry.path)}; if not, {hint}"
        )
    raise ChangedFile(
        message, cause="a part of its records is in the table, and the rest may be others now", hint=hint
    )


def _difference(before: tuple[int, int, int], now: tuple[int, int, int] | None) -> str:
    """Return in words what differs of the identity of a file."""
    if now is None:
        return "it is not a plain file any more"
    size, time, inode = (a != b for a, b in zip(before, now, strict=True))
    words = []
    if size:
        words.append(f"it had {before[0]} bytes, and has {now[0]}")
    if inode:
        words.append(f"it is another file (inode {now[2]}, before {before[2]})")
    if time and not size:
        words.append(f"it was last written at {_time(now[1])}, before at {_time(before[1])}")
    return ", and ".join(words)


def _time(nanoseconds: int) -> str:
    """Return a time of a file as `touch -d` takes it, with all its digits."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


_streams: dict[str, tuple[IO[bytes], Any]] = {}
"""Inputs that can be read once only (standard input, pipes), open: the raw file, and what decompresses it."""

_looked_at: dict[str, bytes] = {}
"""The bytes that were read from them before the load began."""


class Reader:
    """The uncompressed bytes of an input; as a context manager."""

    def __init__(self, entry: Input) -> None:
        self.entry = entry
        self._raw: IO[bytes] | None = None
        self._file: Any = None
        self._ended = False

    def __enter__(self) -> Reader:
        if self.entry.path in _streams:
            self._raw, self._file = _streams[self.entry.path]
            return self
        if self.entry.path == STDIN:
            self._raw = sys.stdin.buffer
        else:
            try:
                self._raw = open(self.entry.path, "rb", buffering=0)  # noqa: PTH123
            except OSError as error:
                raise InputError(f"cannot read `{self.entry.path}`: {error.strerror}") from error
        match self.entry.compression:
            case "gz":
                self._file = gzip.GzipFile(fileobj=self._raw)
            case "xz":
                self._file = lzma.LZMAFile(self._raw)
            case "zst":
                import pyarrow as pa

                self._file = pa.CompressedInputStream(pa.PythonFile(self._raw, "r"), "zstd")
            case _:
                self._file = self._raw
        if self.entry.identity is None:
            _streams[self.entry.path] = self._raw, self._file
        return self

    def __exit__(self, *_: object) -> None:
        path, once = self.entry.path, self.entry.identity is None
        if self._raw is None or path == STDIN or (once and (not self._ended or path in _looked_at)):
            return
        # Another load of this process may be given another pipe of this name.
        _streams.pop(path, None)
        self._raw.close()

    def read(self, size: int) -> bytes:
        """Return the next bytes; none at the end.

        Raises:
            InputError: the file is damaged or cut short.
        """
        if self.entry.path in _looked_at:
            return _looked_at.pop(self.entry.path)
        parts: list[bytes] = []
        left = size
        try:
            # A pipe gives what there is; pieces must not depend on that.
            while left and (part := self._file.read(left)):
                parts.append(bytes(part))
                left -= len(part)
        except EOFError as error:
            raise self._damaged("it is cut short") from error
        except (OSError, zlib.error, lzma.LZMAError) as error:
            raise self._damaged(str(error)) from error
        self._ended = left > 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _damaged(self, why: str) -> InputError:
        return InputError(
            f"`{self.entry.path}` cannot be read to its end: {why}",
            cause="the file is damaged, or was not copied whole",
            hint="test it: gzip -t, zstd -t or xz -t; or get it again",
        )


def splitter_for(kind: Format, options: LoadOptions, terminator: int) -> RecordSplitter:
    """Return a splitter for the records of a format."""
    if kind == "csv":
        quote = ord(options.quote or '"')
        return RecordSplitter(
            "csv", quote=quote, escape=ord(options.escape) if options.escape else quote, terminator=terminator
        )
    return RecordSplitter("text" if kind == "tsv" else "lines", terminator=terminator)


def terminator_of(sample: bytes) -> int:
    """Return the last byte of a line end: a line feed, or a carriage return where there is no line feed."""
    return 13 if b"\r" in sample and b"\n" not in sample else 10


def read_first(entry: Input, size: int = BLOCK_BYTES) -> bytes:
    """Return the first bytes of an input, uncompressed; of a pipe they are kept for the load.

    Raises:
        InputError: it cannot be read.
    """
    if entry.path in _looked_at:
        return _looked_at[entry.path]
    with Reader(entry) as reader:
        data = reader.read(size)
        if entry.identity is None:
            _looked_at[entry.path] = data
    return data


def read_chunks(
    reader: Reader,
    options: LoadOptions,
    *,
    piece_bytes: int,
    skip_header: bool,
) -> Iterator[Chunk]:
    """Yield the pieces of a file of text.

    Args:
        reader: open.
        piece_bytes: a piece ends with the first record that ends at or after this many bytes.
        skip_header: leave out the first record.

    Raises:
        InputError: the file ends within a record.
    """
    entry = reader.entry
    block = reader.read(BLOCK_BYTES)
    line = 1
    if block.startswith(_UTF8_MARK) and (options.encoding or "UTF8").upper().replace("-", "") == "UTF8":
        block = block[len(_UTF8_MARK) :]
    terminator = terminator_of(block)
    if skip_header:
        header, block = _cut_header(reader, options, terminator, block)
        line += max(1, header.count(terminator))
    splitter = splitter_for(entry.format, options, terminator)
    parts: list[bytes | memoryview] = []
    size = records = lines = number = 0
    wants_checksum = entry.identity is None
    last_record_open = False
    step = min(BLOCK_BYTES, max(_LEAST_STEP_BYTES, piece_bytes))
    for taken in _steps(reader, block, step):
        end, ended, passed = splitter.feed(taken)
        if end < 0:
            parts.append(taken)
            size += len(taken)
            last_record_open = True
        else:
            records += ended
            lines += passed
            last_record_open = end < len(taken)
            if size + end >= piece_bytes:
                parts.append(memoryview(taken)[:end])
                yield _chunk(entry, number, parts, records, size + end, line, checksum=wants_checksum)
                number += 1
                line += lines
                parts = [memoryview(taken)[end:]] if last_record_open else []
                size, records, lines = len(taken) - end, 0, 0
            else:
                parts.append(taken)
                size += len(taken)
    if splitter.is_open:
        raise InputError(
            f"{entry.name} ends within a record that began after line {line + lines - 1}",
            cause="the file is cut short, or a quote is not closed",
            hint="see how it is quoted: --quote, --escape, --format",
        )
    if last_record_open:
        records += 1
    if parts:
        yield _chunk(entry, number, parts, records, size, line, checksum=wants_checksum)


def _steps(reader: Reader, first: bytes, step: int) -> Iterator[bytes]:
    """Yield the rest of an input in steps of this size, beginning with the block that was read already."""
    for at in range(0, len(first), step):
        yield first[at : at + step]
    while block := reader.read(step):
        yield block


def _chunk(
    entry: Input,
    number: int,
    parts: list[bytes | memoryview],
    records: int,
    size: int,
    line: int,
    *,
    checksum: bool,
) -> Chunk:
    value = 0
    if checksum:
        for part in parts:
            value = zlib.crc32(part, value)
    return Chunk(entry.number, number, parts, records, size, line, value)


def _cut_header(reader: Reader, options: LoadOptions, terminator: int, block: bytes) -> tuple[bytes, bytes]:
    """Return the first record, and what of the input was read after it."""
    while True:
        ends = splitter_for(reader.entry.format, options, terminator).ends(block)
        if len(ends):
            return block[: int(ends[0])], block[int(ends[0]) :] or reader.read(BLOCK_BYTES)
        more = reader.read(BLOCK_BYTES)
        if not more:
            return block, b""
        if len(block) > _LONGEST_HEADER_BYTES:
            raise InputError(
                f"the header of {reader.entry.name} has no end", hint="see how it is quoted: --quote"
            )
        block += more


class FileParts(Sequence[bytes | memoryview]):
    """The bytes of a whole file in blocks, read when they are wanted: for COPY's binary format."""

    def __init__(self, entry: Input) -> None:
        self._entry = entry

    def __iter__(self) -> Iterator[bytes | memoryview]:
        with Reader(self._entry) as reader:
            while block := reader.read(BLOCK_BYTES):
                yield block

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: object) -> bytes:  # type: ignore[override]
        raise IndexError(index)
