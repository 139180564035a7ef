"""What a file of somebody else may become in memory: bounded by its length, before it is decoded.

A few bytes can stand for gigabytes: a compressed stretch of zeros, a run of equal values, one long text that
stands in every row. What pgsweep and other honest programs write becomes ten times as long when it is
decoded, at most some tens of times. So a file may become `FREE_BYTES` and `MOST_RATIO` times what it takes on
the disk, and one that asks for more is refused.

A Parquet file says in its footer and before each page how long it is decoded. Arrow believes that, and
allocates as much. So these are read first, here: the footer has offsets, and each page its length and the
number of its values (parquet.thrift, thrift-compact-protocol.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import IO, TYPE_CHECKING, Any, Final

from pgsweep.units import format_bytes

if TYPE_CHECKING:
    from pyarrow import parquet

FREE_BYTES: Final = 64 << 20
"""What any file may become, however short it is."""

MOST_RATIO: Final = 100
"""Recordings of a server that is idle, which repeat most, become 9 times as long."""

_MOST_FOOTER_BYTES: Final = 1 << 20
"""That of 500 groups of 15 columns. Arrow takes some hundred times as much for it."""

_MOST_ELEMENTS: Final = 1000
"""Columns, groups, and other lists of a footer; also how deep columns can lie in one another."""

_MOST_HEADER_BYTES: Final = 64 << 10
_USUAL_HEADER_BYTES: Final = 256
_MAGIC: Final = b"PAR1"
_MOST_DEPTH: Final = 12

_NUMBER_BYTES: Final = 12
"""What a number takes at most."""

_TEXT_BYTES: Final = 64
"""What a text takes besides its bytes as an object of Python."""

_SHARED_TEXT_BYTES: Final = 12
"""What one takes that is there already: a number in Arrow, and a pointer."""

_LONG_KEY: Final = re.compile(
    r"""(?<![\w-])(?:[\w-]{1,200}|"(?:[^"\\\n]|\\.){0,200}"|'[^'\n]{0,200}')"""
    r"""(?:[ \t]*\.[ \t]*(?:[\w-]{1,200}|"(?:[^"\\\n]|\\.){0,200}"|'[^'\n]{0,200}')){64}"""
)
"""A key of TOML with more than 64 parts; the time and the memory that it takes grow with their square."""

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_NUMBERS: Final = {4: 16, _I32: 32, _I64: 64}
"""Types of Thrift: whole numbers, and their bits."""

_PLAIN: Final = {1: 0, 2: 0, 3: 1, 7: 8}
"""True, false, a byte, and a floating-point number, and what each takes."""

_FIXED_WIDTH: Final = {0, 2, 3, 4, 5, 8, 9}
"""Encodings whose values are no longer than their page, or than their type. Of the others, which are for
texts alone, each value may repeat the beginning of the one before it."""


_IN_DICTIONARY: Final = {2, 8}
"""Encodings by a dictionary; for the page with the dictionary itself, 2 means plain values."""


class TooMuch(ValueError):
    """A file that would become more than its length allows, or does not say how much."""


class Budget:
    """What a file, or some together, may still become.

    Args:
        stored_bytes: what they take on the disk.
        ratio: how many times that they may become, in addition to `FREE_BYTES`.

    Attributes:
        most_bytes: what they may become in all.
    """

    def __init__(self, stored_bytes: int, ratio: int = MOST_RATIO) -> None:
        self._stored_bytes = stored_bytes
        self.most_bytes = self._left_bytes = FREE_BYTES + ratio * stored_bytes

    @classmethod
    def of(cls, file: IO[bytes], ratio: int = MOST_RATIO) -> Budget:
        """Return that of an open file."""
        return cls(stored_bytes(file), ratio)

    def spend(self, count: int) -> None:
        """Take some bytes off.

        Raises:
            TooMuch: there are not so many left.
        """
        self._left_bytes -= count
        if self._left_bytes < 0 or count < 0:
            raise TooMuch(
                f"it takes {format_bytes(self._stored_bytes)} and would become more than "
                f"{format_bytes(self.most_bytes)}"
            )


def stored_bytes(file: IO[bytes]) -> int:
    """Return how long a file is without its holes, which take nothing on the disk (lseek(2))."""
    descriptor, end = file.fileno(), os.fstat(file.fileno()).st_size
    if os.fstat(descriptor).st_blocks * 512 >= end:
        return end
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    found = at = 0
    try:
        while at < end:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            hole = os.lseek(descriptor, at, os.SEEK_HOLE)
            found += hole - at
            at = hole
    except OSError:  # ENXIO: there is no data behind
        pass
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
    return found


def toml_of(text: bytes) -> dict[str, Any]:
    """Return what TOML says.

    Raises:
        ValueError: it is not TOML, or nested deeper or with larger numbers than any that is meant.
    """
    import tomllib

    decoded = text.decode()
    if _LONG_KEY.search(decoded):
        raise ValueError("it has a key of more than 64 parts")
    try:
        found = tomllib.loads(decoded)
        _check_numbers(found)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return found


def _check_numbers(value: Any) -> None:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_numbers(inner)
    elif isinstance(value, int) and value.bit_length() > 64:
        raise ValueError(f"it has a number of {value.bit_length()} bits")


def parquet_end(source: IO[bytes]) -> parquet.FileMetaData:
    """Return what the end of a Parquet file says, of which nothing is checked but that it is of usual size.

    Raises:
        TooMuch: it is not.
        ArrowException, OSError: it is broken.
    """
    from pyarrow import parquet

    _footer_at(source)
    with parquet.ParquetFile(source, thrift_container_size_limit=_MOST_ELEMENTS, pre_buffer=False) as file:
        found = file.metadata
    source.seek(0)
    return found


def open_parquet(source: IO[bytes], columns: Collection[str]) -> tuple[parquet.ParquetFile, list[int]]:
    """Return a Parquet file of which these columns can be read, and what they become in each of its groups.

    Text stays a dictionary when it is read: a long one that stands in every row is there once.

    Args:
        source: the file, which stays open.
        columns: by name, those that are to be read; those that are not there are left out.

    Raises:
        TooMuch: its pages are not what its description says, or have no known length.
        ArrowException, OSError: the file is broken.
    """
    from pyarrow import parquet

    _footer_at(source)
    options: dict[str, Any] = {
        "pre_buffer": False,
        "page_checksum_verification": True,
        "thrift_container_size_limit": _MOST_ELEMENTS,
    }
    file = parquet.ParquetFile(source, **options)
    there = [file.metadata.schema.column(at) for at in range(file.metadata.num_columns)]
    wanted = {
        at: column
        for at, column in enumerate(there)
        if any(column.path == name or column.path.startswith(f"{name}.") for name in columns)
    }
    costs = _costs(source, {at: _widths(column) for at, column in wanted.items()})
    texts = [column.path for column in wanted.values() if column.physical_type == "BYTE_ARRAY"]
    if texts:
        file = parquet.ParquetFile(source, metadata=file.metadata, read_dictionary=texts, **options)
    return file, costs


def longest_text(source: IO[bytes], chunk: parquet.ColumnChunkMetaData) -> int:
    """Return the bytes of the longest text in the dictionary of a column in one group of rows.

    Any row may have that text, so it says what some rows may become.

    Args:
        source: the file.
        chunk: the column's description there.

    Raises:
        TooMuch: the dictionary is not what the description says.
    """
    import pyarrow as pa

    if not chunk.has_dictionary_page or chunk.dictionary_page_offset is None:
        return 0
    descriptor, at = source.fileno(), chunk.dictionary_page_offset
    header, length = _header(descriptor, at, os.fstat(descriptor).st_size)
    size = int(_required(header, _PAGE_DECOMPRESSED))
    if not 0 <= size <= FREE_BYTES:
        raise TooMuch(f"a dictionary in it has {format_bytes(size)}")
    page = os.pread(descriptor, max(0, _required(header, _PAGE_COMPRESSED)), at + length)
    codec = chunk.compression.lower()
    try:
        data = page if codec == "uncompressed" else pa.decompress(page, size, codec, asbytes=True)
    except (pa.ArrowException, ValueError):
        return size  # another way of compressing: it is not longer than all
    longest = place = 0
    while place + 4 <= len(data):
        longest = max(longest, count := int.from_bytes(data[place : place + 4], "little"))
        place += 4 + count
    return longest


def _widths(column: parquet.ColumnSchema) -> tuple[int, int]:
    """Return what a value takes in Arrow and NumPy: one that is in a dictionary, and one that is not."""
    if column.physical_type == "BYTE_ARRAY":
        return _SHARED_TEXT_BYTES, _TEXT_BYTES
    width = max(column.length, _NUMBER_BYTES)
    return width, width


def _footer_at(source: IO[bytes]) -> tuple[int, int]:
    """Return where the footer begins, and its length."""
    descriptor = source.fileno()
    size = os.fstat(descriptor).st_size
    last = os.pread(descriptor, 8, max(0, size - 8))
    length = int.from_bytes(last[:4], "little")
    # Whatever else is wrong with the end of a file, Arrow says.
    if size >= 12 and last[4:] == _MAGIC and length > _MOST_FOOTER_BYTES:
        raise TooMuch(f"its description has {format_bytes(length)}")
    return size - 8 - length, length


def _costs(source: IO[bytes], widths: dict[int, tuple[int, int]]) -> list[int]:
    """Return what some columns become in each group of rows.

    Args:
        source: the file.
        widths: the bytes of a value (see `_widths`), by the number of a column.
    """
    descriptor = source.fileno()
    end, length = _footer_at(source)
    footer = _description(os.pread(descriptor, length, max(0, end)))
    if _FOOTER_ENCRYPTED in footer:
        raise TooMuch("it is encrypted")
    costs = []
    for group in footer.get(_FOOTER_GROUPS, []):
        rows = _required(group, _GROUP_ROWS)
        chunks = _required(group, _GROUP_CHUNKS)
        costs.append(0)
        for at, width in widths.items():
            if at >= len(chunks) or _CHUNK_META not in chunks[at] or _CHUNK_FILE in chunks[at]:
                raise TooMuch("its description lacks a column")
            costs[-1] += _cost(descriptor, end, chunks[at][_CHUNK_META], rows, width)
    return costs


def _cost(descriptor: int, end: int, chunk: dict[int, Any], rows: int, width: tuple[int, int]) -> int:
    """Return what the pages of a column in a group of some rows become."""
    if _required(chunk, _META_VALUES) == 0:  # then Arrow reads no page, and where they lie is not said
        return rows * width[0]
    begin = _required(chunk, _META_DATA_AT)
    dictionary = chunk.get(_META_DICTIONARY_AT, 0)
    if 0 < dictionary < begin:
        begin = dictionary
    at, last = begin, begin + _required(chunk, _META_COMPRESSED)
    if not 4 <= begin <= last <= end:
        raise TooMuch("a column does not lie within it")
    cost = values = 0
    while at < last:
        header, length = _header(descriptor, at, last)
        after = _required(header, _PAGE_COMPRESSED)
        decompressed = _required(header, _PAGE_DECOMPRESSED)
        page = header.get(_PAGE_DATA) or header.get(_PAGE_DATA_V2) or header.get(_PAGE_DICTIONARY)
        if min(after, decompressed) < 0 or page is None or at + length + after > last:
            raise TooMuch("the pages of a column are not what its description says")
        encoding = page.get(_V2_ENCODING if _PAGE_DATA_V2 in header else _PAGE_ENCODING)
        if encoding not in _FIXED_WIDTH:
            raise TooMuch(f"a column is encoded in a way ({encoding}) that does not say how long it is")
        in_dictionary = encoding in _IN_DICTIONARY and _PAGE_DICTIONARY not in header
        count = _required(page, _PAGE_VALUES)
        cost += decompressed + count * width[not in_dictionary]
        values += 0 if _PAGE_DICTIONARY in header else count
        at += length + after
    # Arrow takes the number of rows for true when it makes room for them.
    return cost + max(rows - values, 0) * width[0]


def _header(descriptor: int, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the header of the page at a place, and its length."""
    for most in (_USUAL_HEADER_BYTES, _MOST_HEADER_BYTES):
        data = os.pread(descriptor, min(most, end - at), at)
        try:
            return _struct(data, 0, {})
        except IndexError:
            continue
    raise TooMuch("a page has no header of a usual length")


def _description(footer: bytes) -> dict[int, Any]:
    try:
        return _struct(footer, 0, _KNOWN)[0]
    except IndexError:
        raise TooMuch("its description is broken") from None


def _required(found: dict[int, Any], key: int) -> Any:
    try:
        return found[key]
    except KeyError:
        raise TooMuch("its description lacks a length") from None


def _key(field: int, kind: int) -> int:
    """Return the key of a field: one of another type than it should have is another field, as for Arrow."""
    return field << 4 | kind


_FOOTER_GROUPS, _FOOTER_ENCRYPTED = _key(4, _LIST), _key(8, _STRUCT)
_GROUP_CHUNKS, _GROUP_ROWS = _key(1, _LIST), _key(3, _I64)
_CHUNK_FILE, _CHUNK_META = _key(1, _BINARY), _key(3, _STRUCT)
_META_VALUES, _META_COMPRESSED = _key(5, _I64), _key(7, _I64)
_META_DATA_AT, _META_DICTIONARY_AT = _key(9, _I64), _key(11, _I64)
_PAGE_DECOMPRESSED, _PAGE_COMPRESSED = _key(2, _I32), _key(3, _I32)
_PAGE_DATA, _PAGE_DICTIONARY, _PAGE_DATA_V2 = _key(5, _STRUCT), _key(7, _STRUCT), _key(8, _STRUCT)
_PAGE_VALUES, _PAGE_ENCODING, _V2_ENCODING = _key(1, _I32), _key(2, _I32), _key(4, _I32)

_SKIPPED_META: Final = {
    _key(2, _LIST): _I32,
    _key(3, _LIST): _BINARY,
    _key(8, _LIST): {},
    _key(13, _LIST): {},
    _key(16, _STRUCT): {_key(2, _LIST): _I64, _key(3, _LIST): _I64},
    _key(17, _STRUCT): {_key(2, _LIST): _I32},
}
_KNOWN: Final[dict[int, Any]] = {
    _key(2, _LIST): {},
    _FOOTER_GROUPS: {_GROUP_CHUNKS: {_CHUNK_META: _SKIPPED_META}, _key(4, _LIST): {}},
    _key(5, _LIST): {},
    _key(7, _LIST): {},
}
"""What lists in a footer consist of, and structs with lists in them. Arrow does not look at what type a list
says that it has, so one that says another would be read in another way here."""

_PARSED: Final = {_FOOTER_GROUPS, _GROUP_CHUNKS, _CHUNK_META, _PAGE_DATA, _PAGE_DICTIONARY, _PAGE_DATA_V2}
"""Structs, and lists of them, whose fields count."""


def _struct(data: bytes, at: int, known: dict[int, Any]) -> tuple[dict[int, Any], int]:
    """Return the numbers and the parsed structs of a struct by `_key`, and where it ends.

    It is in Thrift's compact protocol. What does not count is passed over.

    Raises:
        IndexError: the data end before it does.
        TooMuch: it is broken.
    """
    found: dict[int, Any] = {}
    field = 0
    while data[at]:
        field, kind, at = _field(data, at, field)
        key = field << 4 | kind
        if key in found:
            raise TooMuch("its description has something twice")
        found[key] = None
        if kind in _NUMBERS:
            number = data[at]
            if number < 128:  # most are, and a call takes longer than all else
                at += 1
            else:
                number, at = _varint(data, at)
                if number >> _NUMBERS[kind]:
                    raise TooMuch("its description has a number that is too large")
            found[key] = number >> 1 ^ -(number & 1)
        elif key not in _PARSED:
            at = _after(data, at, kind, known.get(key), 0)
        elif kind == _STRUCT:
            found[key], at = _struct(data, at, known.get(key) or {})
        else:
            count, at = _count(data, at, {})
            found[key] = []
            for _ in range(count):
                value, at = _struct(data, at, known.get(key) or {})
                found[key].append(value)
    return found, at + 1


def _field(data: bytes, at: int, before: int) -> tuple[int, int, int]:
    """Return a field's number and type, and where its value begins; `before` is the last one's number."""
    head = data[at]
    if head >> 4:
        return before + (head >> 4), head & 15, at + 1
    number, at = _varint(data, at + 1)
    return _signed(number), head & 15, at


def _after(data: bytes, at: int, kind: int, known: Any, depth: int) -> int:
    """Return where a value ends."""
    if kind in _NUMBERS:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _BINARY:
        number, at = _varint(data, at)
        return at + number
    if kind in _PLAIN:
        return at + _PLAIN[kind]
    if depth > _MOST_DEPTH:
        raise TooMuch("its description is nested too deep")
    if kind == _LIST:
        of = data[at] & 15
        count, at = _count(data, at, known)
        for _ in range(count):
            at = _after(data, at, of, known, depth + 1)
        return at
    if kind != _STRUCT:
        raise TooMuch("its description is broken")
    field = 0
    while data[at]:
        field, kind, at = _field(data, at, field)
        if kind == _BINARY and data[at] < 128:  # most are; a call takes longer
            at += data[at] + 1
        elif kind in _PLAIN:
            at += _PLAIN[kind]
        else:
            at = _after(data, at, kind, known.get(field << 4 | kind) if known else None, depth + 1)
    return at + 1


def _count(data: bytes, at: int, known: Any) -> tuple[int, int]:
    """Return how many elements a list has, and where they begin."""
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    if known is not None and kind != (_STRUCT if isinstance(known, dict) else known):
        raise TooMuch("its description has a list of another kind")
    # A boolean in a list is a byte. Parquet has none there, and no floating-point numbers.
    if kind not in _NUMBERS and kind not in (_BINARY, _STRUCT):
        raise TooMuch("its description is broken")
    if count > _MOST_ELEMENTS:
        raise TooMuch(f"its description has a list of {count}")
    return count, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    number, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at + 1
        shift += 7
        if shift > 63:
            raise TooMuch("its description has a number that is too large")


def _signed(number: int) -> int:
    return number >> 1 ^ -(number & 1)
