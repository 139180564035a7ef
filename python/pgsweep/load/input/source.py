"""Input files: found, opened, and decompressed."""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from pgsweep.commands import on_server
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load.options import Format, LoadOptions
from pgsweep.pg.load.ways import Ways
from pgsweep.plain import shell_word

BLOCK_BYTES: Final = 1 << 20
STDIN: Final = "-"

_COMPRESSIONS: Final = {".gz": "gz", ".zst": "zst", ".xz": "xz"}
_MAGIC: Final = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"\xfd7zXZ\0": "xz"}
"""The first bytes of compressed files."""

_OTHERS: Final = {
    b"PAR1": ("a Parquet file", "name its format: --format parquet"),
    b"PGCOPY\n\xff": ("a file of COPY's binary format", "name its format: --format binary"),
    b"BZh": ("compressed by bzip2", "decompress it: bzcat FILE | {load}"),
    b"PK\3\4": ("a zip archive", "decompress it: unzip -p FILE | {load}"),
}
"""The first bytes of what is read in another way, or not at all."""

_WIDE_MARKS: Final = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Those of UTF-32 first: in little endian order they begin with that of UTF-16."""
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


_UNPACK: Final = {"gz": "zcat", "zst": "zstdcat", "xz": "xzcat"}


class InputError(PgsweepError):
    """A file cannot be read, or is not what it should be."""


class ChangedFile(InputError):
    """A file is not as it was when the load began."""


class Input(msgspec.Struct, frozen=True, dict=True):
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

    @cached_property
    def only_reader(self) -> Reader | None:
        """Its reader, where it can be read once only: standard input, a pipe. No part of it in a journal."""
        return Reader(self) if self.identity is None else None


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
            how = "name it: --format csv"
            if suffixes and suffixes[-1] in (".bz2", ".zip", ".lz4", ".7z"):
                how = "decompress it; .gz, .zst and .xz are read as they are"
            raise UsageError(f"the name of `{path}` does not say its format", hint=how)
        kind = "csv"
    identity = None
    if path != STDIN:
        try:
            identity = _identity(os.stat(path))  # noqa: PTH116
            if identity is not None and compression is None:
                compression = _packed(_first_bytes(path))
        except OSError as error:
            raise InputError(f"cannot read `{path}`: {error.strerror}") from error
    if kind == "parquet" and (identity is None or compression is not None):
        raise UsageError(
            f"`{path}` cannot be read as Parquet",
            cause="a Parquet file is read from its end, so it must be a plain file",
            hint="write it to a file first",
        )
    return Input(path, number, kind, compression, None if identity is None else identity[0], identity)


def check_encoding(entry: Input, sample: bytes, options: LoadOptions) -> None:
    """Refuse text that begins with the byte order mark of UTF-16 or UTF-32, or as files of another kind do.

    Raises:
        InputError: it does.
    """
    load = on_server("pgsweep load", "- TABLE")
    if entry.compression is None and (packed := _packed(sample)):
        raise InputError(
            f"{entry.name} is compressed ({packed})",
            cause="standard input and pipes are read as they are",
            hint=f"decompress it: {_UNPACK[packed]} FILE | {load}",
        )
    other = next((what for magic, what in _OTHERS.items() if sample.startswith(magic)), None)
    if other is not None:
        raise InputError(
            f"{entry.name} is {other[0]}, and not {entry.format}",
            cause="its first bytes say so",
            hint=other[1].replace("{load}", load),
        )
    mark = next((mark for mark in _WIDE_MARKS if sample.startswith(mark)), None)
    if mark is None or not (options.encoding or "UTF8").upper().startswith("UTF"):
        return
    name = _WIDE_MARKS[mark]
    nameless = entry.path == STDIN or entry.compression is not None
    raise InputError(
        f"{entry.name} is in {name}",
        cause="it begins with the byte order mark of that encoding, which PostgreSQL does not take",
        hint=f"convert it: iconv -f {name} -t UTF-8 {'FILE' if nameless else shell_word(entry.path)}",
    )


def _packed(sample: bytes) -> str | None:
    """Return how bytes are compressed, by the first of them."""
    return next((name for magic, name in _MAGIC.items() if sample.startswith(magic)), None)


def _first_bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read(8) or b""


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[Input]) -> None:
    """Refuse to write over an input, whatever name it has.

    Raises:
        UsageError: an output is one.
    """
    for output in outputs:
        for entry in inputs:
            with suppress(OSError):
                if output is not None and entry.path != STDIN and output.samefile(entry.path):
                    raise UsageError(
                        f"`{output}` is a file that is loaded",
                        cause="it would be written over",
                        hint="name another file for what is written",
                    )


def _identity(status: os.stat_result) -> tuple[int, int, int] | None:
    return (status.st_size, status.st_mtime_ns, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def check_unchanged(entry: Input, *, begun: Ways | None = None) -> None:
    """Refuse a file that is not as it was when the load began.

    Args:
        begun: the commands of a load that an earlier run has begun, and that stays begun.

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
    if begun is None:
        raise ChangedFile(
            message,
            cause="it is still being written, or another file has its name",
            hint="wait until it is whole, then load it again",
        )
    hint = f"undo the load: {begun.rollback}; then load the file again"
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


class _Streams(io.RawIOBase):
    """The bytes of the streams of an .xz file, between which there may be padding.

    `lzma.LZMAFile` takes padding, and whatever else is not a stream, for the end of the file.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._stream = lzma.LZMADecompressor()
        self._next = b""

    def readable(self) -> bool:
        """It is for reading."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and return how many; 0 at the end.

        Raises:
            EOFError: the file is cut short.
            LZMAError: it is damaged.
        """
        data = b""
        while not data:
            if self._stream.eof:
                self._next = self._stream.unused_data.lstrip(b"\0")
                while not self._next:
                    block = self._raw.read(BLOCK_BYTES)
                    if not block:
                        return 0
                    self._next = block.lstrip(b"\0")
                self._stream = lzma.LZMADecompressor()
            elif self._stream.needs_input and not self._next:
                self._next = self._raw.read(BLOCK_BYTES)
                if not self._next:
                    raise EOFError
            data = self._stream.decompress(self._next, len(buffer))
            self._next = b""
        buffer[: len(data)] = data
        return len(data)


class Reader:
    """The uncompressed bytes of an input; as a context manager, which `opened` returns."""

    def __init__(self, entry: Input) -> None:
        self.entry = entry
        self._raw: IO[bytes] | None = None
        self._file: Any = None
        self._kept: bytes | None = None
        self._ended = False

    def __enter__(self) -> Reader:
        if self._raw is not None:
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
                self._file = _Streams(self._raw)
            case "zst":
                import pyarrow as pa

                self._file = pa.CompressedInputStream(pa.PythonFile(self._raw, "r"), "zstd")
            case _:
                self._file = self._raw
        return self

    def __exit__(self, *_: object) -> None:
        wanted = self.entry.identity is None and (self._kept is not None or not self._ended)
        if self._raw is not None and not wanted and self.entry.path != STDIN:
            self._raw.close()

    def read(self, size: int) -> bytes:
        """Return the next bytes; none at the end.

        Raises:
            InputError: the file is damaged or cut short.
        """
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
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

    def keep(self, data: bytes) -> None:
        """Keep what was read, where it can be read once only."""
        if self.entry.identity is None:
            self._kept = data

    def _damaged(self, why: str) -> InputError:
        return InputError(
            f"`{self.entry.path}` cannot be read to its end: {why}",
            cause="the file is damaged, or was not copied whole",
            hint="test it: gzip -t, zstd -t or xz -t; or get it again",
        )


def opened(entry: Input) -> Reader:
    """Return a reader of an input; where that can be read once only, it goes on where the last one ended."""
    return entry.only_reader or Reader(entry)


class FileParts:
    """The bytes of a whole file in blocks, read when they are wanted: for COPY's binary format."""

    def __init__(self, entry: Input) -> None:
        self._entry = entry

    def __iter__(self) -> Iterator[bytes | memoryview]:
        with opened(self._entry) as reader:
            while block := reader.read(BLOCK_BYTES):
                yield block
