"""Text cut into whole records, by the splitter's own count and by the grammar of the format.

A piece is what one transaction copies. Where it begins and ends depends on the bytes of the file and the size
of a piece alone, so a run that resumes finds the same pieces.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pgsweep._native import RecordSplitter
from pgsweep.load.input.source import BLOCK_BYTES, Input, InputError, Reader, check_encoding, opened
from pgsweep.load.options import Format, LoadOptions
from pgsweep.pg.load.journal import Reject
from pgsweep.pg.load.search import Records
from pgsweep.units import format_bytes

_UTF8_MARK: Final = b"\xef\xbb\xbf"
_LEAST_STEP_BYTES: Final = 4096
_LF, CR = 10, 13

_FREE_BYTES: Final = 64 << 20
_MOST_RATIO: Final = 100
"""A record of a compressed file may become this, and this many times what the file takes: a few bytes of it
can stand for gigabytes."""

_PAIRS: Final = {
    "sjis mskanji shiftjis win932 windows932 shiftjis2004": rb"[\x81-\x9f\xe0-\xfc]",
    "big5 win950 windows950 gbk win936 windows936 gb18030 johab uhc win949 windows949": rb"[\x80-\xff]",
}
"""Encodings in which a byte below 128 may be the second one of a character, by the server's names, and what
such a character begins with (pg_wchar.c). The server converts them before it looks for record ends."""


_ENCODINGS: Final = {"sjis": "cp932", "uhc": "cp949", "euccn": "gb2312", "koi8r": "koi8_r", "koi8u": "koi8_u"}
"""Encodings that Python knows by other names than the server; besides, WIN1252 is cp1252."""


@dataclass(frozen=True)
class Head:
    """The beginning of a file: at least its first record, or all of it.

    Attributes:
        data: without a byte order mark.
        terminator: the last byte of a line end, as the first one that is not in quotes has it.
        end: where the first record ends; None where the file ends before it does.
        whole: it is all of the file.
        is_open: the file ends within quotes, or after an escape.
    """

    data: bytes
    terminator: int
    end: int | None
    whole: bool
    is_open: bool

    @property
    def record(self) -> bytes:
        """The first record."""
        return self.data if self.end is None else self.data[: self.end]


@dataclass(frozen=True)
class Chunk:
    """One piece of a file.

    Attributes:
        parts: the bytes for COPY, whole records.
        records: how many; None where only the server can count them.
        source_bytes: of the uncompressed file.
        first_line: line of the file at which it begins, from 1; of Parquet the row.
        checksum: of the bytes, where the file cannot be known again otherwise.
        columns: that the bytes are for; None for those of the plan.
        lines: of Parquet and JSON the row or the line of each record.
        sources: of JSON each record as the file has it, where records may be refused.
        refused: records that are not sent to the server, as they cannot be read.
    """

    file: int
    piece: int
    parts: Iterable[bytes | memoryview]
    records: int | None
    source_bytes: int
    first_line: int
    checksum: int = 0
    terminator: int = _LF
    columns: list[str] | None = None
    lines: Sequence[int] | None = None
    sources: Sequence[bytes] | None = None
    refused: Sequence[Reject] = ()

    def of(
        self,
        parts: list[bytes],
        lines: list[int],
        sources: list[bytes],
        refused: list[Reject],
        columns: list[str] | None = None,
    ) -> Chunk:
        """Return the piece with other bytes for COPY."""
        return replace(
            self,
            parts=parts,
            records=len(lines),
            columns=columns,
            lines=lines,
            sources=sources or None,
            refused=refused,
        )


def is_utf8(options: LoadOptions) -> bool:
    """Return whether the files are in UTF-8."""
    return _plain(options.encoding or "UTF8") in ("utf8", "unicode")


def codec_of(encoding: str | None) -> str:
    """Return Python's codec for an encoding of the server; one that takes any bytes where it has none."""
    plain = _plain(encoding or "UTF8")
    name = _ENCODINGS.get(plain, re.sub(r"^win(?=\d)", "cp", plain).replace("iso8859", "iso8859_"))
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "latin-1"


def is_text(record: bytes, options: LoadOptions) -> bool:
    """Return whether a record is text in the encoding of the files, as far as Python knows it."""
    with suppress(UnicodeDecodeError):
        record.decode(codec_of(options.encoding))
        return b"\0" not in record
    return False


def _plain(encoding: str) -> str:
    """Return the name of an encoding as the server compares it (pg_char_to_encoding, encnames.c)."""
    return re.sub(r"[^a-z0-9]", "", encoding.lower())


class _Masked:
    """A splitter of an encoding in which the second byte of a character may look like a quote."""

    def __init__(self, splitter: RecordSplitter, lead: bytes) -> None:
        self._splitter = splitter
        self._pair = re.compile(lead + rb"(?s:.)")
        self._lead = re.compile(lead + rb"\Z")
        self._left = b""

    def _text(self, block: bytes) -> tuple[bytes, int]:
        """Return the block with what was left of the one before, masked, and the length of that."""
        before = len(self._left)
        text = self._pair.sub(b"aa", self._left + block)
        self._left = text[-1:] if self._lead.search(text) else b""
        return text[: len(text) - len(self._left)], before

    def feed(self, block: bytes) -> tuple[int, int, int]:
        text, before = self._text(block)
        end, records, lines = self._splitter.feed(text)
        return (end - before if end >= 0 else -1), records, lines

    def ends(self, block: bytes) -> Any:
        text, before = self._text(block)
        return self._splitter.ends(text) - before

    @property
    def is_open(self) -> bool:
        return self._splitter.is_open or bool(self._left)


def pairs_of(options: LoadOptions) -> bytes | None:
    """Return what begins a character whose second byte may be below 128; None where none is."""
    name = _plain(options.encoding or "")
    return next((lead for names, lead in _PAIRS.items() if name in names.split()), None)


def splitter_for(kind: Format, options: LoadOptions, terminator: int) -> RecordSplitter | _Masked:
    """Return a splitter for the records of a format."""
    if kind == "csv":
        quote = ord(options.quote or '"')
        found = RecordSplitter(
            "csv", quote=quote, escape=ord(options.escape) if options.escape else quote, terminator=terminator
        )
    else:
        found = RecordSplitter("text" if kind == "tsv" else "lines", terminator=terminator)
    lead = None if kind == "jsonl" else pairs_of(options)
    return found if lead is None else _Masked(found, lead)


def read_first(entry: Input, options: LoadOptions) -> Head:
    """Return the beginning of an input, uncompressed; of a pipe it is kept for the load.

    Raises:
        InputError: it cannot be read, or has no record within the limit.
    """
    with opened(entry) as reader:
        head, read = _read_head(reader, options)
        reader.keep(read)
    return head


def _read_head(reader: Reader, options: LoadOptions) -> tuple[Head, bytes]:
    """Return the beginning of a file, and the bytes that were read for it."""
    entry = reader.entry
    blocks = [reader.read(BLOCK_BYTES)]
    check_encoding(entry, blocks[0], options)
    mark = len(_UTF8_MARK) if blocks[0].startswith(_UTF8_MARK) and is_utf8(options) else 0
    kinds = (_LF,) if entry.format == "jsonl" else (_LF, CR)
    splitters = {kind: splitter_for(entry.format, options, kind) for kind in kinds}
    first: dict[int, int] = {}
    block, passed = blocks[0][mark:], 0
    whole = len(blocks[0]) < BLOCK_BYTES
    while True:
        for kind, splitter in splitters.items():
            ends = splitter.ends(block)
            if len(ends):
                first.setdefault(kind, passed + int(ends[0]))
        passed += len(block)
        # A carriage return at the very end may be one half of a line end.
        if _LF in first or first.get(CR, passed) < passed or whole:
            break
        _check_length(entry, options, passed, 1)
        block = reader.read(BLOCK_BYTES)
        whole = not block
        blocks.append(block)
    read = b"".join(blocks)
    data = read[mark:]
    returns = first.get(CR)
    terminator = _LF
    if (
        returns is not None
        and data[returns : returns + 1] != b"\n"
        and returns < first.get(_LF, len(data) + 1)
    ):
        terminator = CR
    end = first.get(terminator)
    return Head(data, terminator, end, whole, end is None and splitters[terminator].is_open), read


def _check_length(entry: Input, options: LoadOptions, size: int, line: int) -> None:
    """Refuse a record that is longer than it may be.

    Raises:
        InputError: it is.
    """
    most, packed = options.max_record_bytes, entry.size_bytes
    cause = "a quote is not closed, its lines end in another way, or it is not a file of records"
    hint = "see how it is quoted: --quote, --escape, --format; or allow more: --max-record SIZE"
    if entry.compression is not None and packed is not None:
        unpacked = _FREE_BYTES + _MOST_RATIO * packed
        if unpacked < most:
            most = unpacked
            cause = f"the file has {format_bytes(packed)}; what stands for so much more may fill the memory"
            hint = "if it is right, decompress it, and load that file"
    if size > most:
        message = f"{entry.name}, line {line}: a record has more than {format_bytes(most)}"
        raise InputError(message, cause=cause, hint=hint)


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
        InputError: the file ends within a record, or within its header; a record is too long.
    """
    entry = reader.entry
    head, _ = _read_head(reader, options)
    terminator, block, line = head.terminator, head.data, 1
    if skip_header:
        check_header_end(entry, head)
        block = block[len(head.record) :]
        line += max(1, head.record.count(terminator))
    splitter = splitter_for(entry.format, options, terminator)
    parts: list[bytes | memoryview] = []
    size = records = lines = number = open_bytes = 0
    wants_checksum = entry.identity is None
    last_record_open = False
    step = min(BLOCK_BYTES, max(_LEAST_STEP_BYTES, piece_bytes))
    for taken in _steps(reader, block, step):
        end, ended, passed = splitter.feed(taken)
        if end < 0:
            parts.append(taken)
            size += len(taken)
            open_bytes += len(taken)
            last_record_open = True
            _check_length(entry, options, open_bytes, line + lines)
            continue
        records += ended
        lines += passed
        open_bytes = len(taken) - end
        last_record_open = end < len(taken)
        if size + end < piece_bytes:
            parts.append(taken)
            size += len(taken)
            continue
        parts.append(memoryview(taken)[:end])
        checksum = _checksum(parts) if wants_checksum else 0
        yield Chunk(entry.number, number, parts, records, size + end, line, checksum, terminator)
        number += 1
        line += lines
        parts = [memoryview(taken)[end:]] if last_record_open else []
        size, records, lines = len(taken) - end, 0, 0
    if splitter.is_open:
        raise InputError(
            f"{entry.name} ends within a record that began after line {line + lines - 1}",
            cause="the file is cut short, or a quote is not closed",
            hint="see how it is quoted: --quote, --escape, --format",
        )
    if parts:
        checksum = _checksum(parts) if wants_checksum else 0
        yield Chunk(entry.number, number, parts, records + last_record_open, size, line, checksum, terminator)


def check_header_end(entry: Input, head: Head) -> None:
    """Refuse a header that has taken the records of the file with it.

    Raises:
        InputError: it has no end, or only one behind other lines.
    """
    if head.end is None and (head.is_open or len(head.data.splitlines()) > 1):
        raise InputError(
            f"the header of {entry.name} reaches the end of the file",
            cause="a quote in it is not closed, so every line after it belongs to it, as COPY reads CSV",
            hint="correct the header; or say how the file is quoted: --quote, --format",
        )


def _steps(reader: Reader, first: bytes, step: int) -> Iterator[bytes]:
    """Yield the rest of an input in steps of this size, beginning with the block that was read already."""
    for at in range(0, len(first), step):
        yield first[at : at + step]
    while block := reader.read(step):
        yield block


def _checksum(parts: Sequence[bytes | memoryview]) -> int:
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def without_end(record: bytes) -> bytes:
    """Return a record without its line end; one that is escaped belongs to its last field."""
    for end in (b"\r\n", b"\n", b"\r"):
        if record.endswith(end):
            return record[: -len(end)]
    return record


def records_of(entry: Input, options: LoadOptions, chunk: Chunk) -> Records:
    """Return the records of a piece one by one."""
    data = b"".join(chunk.parts)
    converted = entry.format in ("jsonl", "parquet")
    splitter = (
        splitter_for("csv", LoadOptions(), _LF)
        if converted
        else splitter_for(entry.format, options, chunk.terminator)
    )
    ends = [int(end) for end in splitter.ends(data)]
    if data and (not ends or ends[-1] < len(data)):
        ends.append(len(data))
    return Records(data, ends)


def line_of(chunk: Chunk, records: Records, number: int) -> int:
    """Return the line of the file at which a record of a piece begins; of Parquet its row."""
    if chunk.lines is not None:
        return chunk.lines[number]
    return chunk.first_line + line_ends(chunk, records, 0, number)


def line_ends(chunk: Chunk, records: Records, begin: int, end: int) -> int:
    """Return how many lines some records of a piece take in the file."""
    return bytes(records.between(begin, end)).count(chunk.terminator)
