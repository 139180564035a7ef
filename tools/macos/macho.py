"""A library for macOS as a file: its segments, and which pointers dyld sets when it loads the library.

The layouts and operations are those of Apple's mach-o/loader.h: a 64-bit Mach-O file of one architecture that
has LC_DYLD_INFO_ONLY, as zig's linker writes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

MAGIC_64 = 0xFEEDFACF
LC_SYMTAB = 0x2
LC_SEGMENT_64 = 0x19
LC_DYLD_INFO_ONLY = 0x80000022
POINTER_BYTES = 8


@dataclass
class Segment:
    """A part of the file and its place in memory, from the library's first byte."""

    address: int
    size: int
    file_offset: int
    file_size: int


@dataclass
class Library:
    """What is needed to load a library: addresses are counted from its first byte in memory."""

    image: bytes
    segments: list[Segment] = field(default_factory=list)
    sections: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The address and size of each section by its name."""
    defined: dict[str, int] = field(default_factory=dict)
    """The address of each symbol that the library defines."""
    rebased: list[int] = field(default_factory=list)
    """Addresses of pointers into the library itself."""
    bound: list[tuple[int, str]] = field(default_factory=list)
    """Address and symbol of each pointer to another library."""


class Stream:
    """Operations and their operands, read one after the other."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def operations(self) -> Iterator[tuple[int, int]]:
        """Yield each operation and the number that is in its lower four bits."""
        while self.at < len(self.content):
            byte = self.content[self.at]
            self.at += 1
            yield byte & 0xF0, byte & 0x0F

    def unsigned(self) -> int:
        """Return the next ULEB128 number."""
        value = shift = 0
        while True:
            byte = self.content[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self) -> str:
        """Return the next text, which ends with a zero byte."""
        end = self.content.index(0, self.at)
        found = self.content[self.at : end].decode()
        self.at = end + 1
        return found


def rebases(content: bytes, segments: list[Segment]) -> Iterator[int]:
    """Yield the addresses of the pointers that REBASE_OPCODE_* describe."""
    stream = Stream(content)
    address = 0
    for operation, number in stream.operations():
        times, skipped = 0, 0
        match operation:
            case 0x00:
                return
            case 0x10:  # the kind of pointer: there is one on 64 bits
                pass
            case 0x20:
                address = segments[number].address + stream.unsigned()
            case 0x30:
                address += stream.unsigned()
            case 0x40:
                address += number * POINTER_BYTES
            case 0x50:
                times = number
            case 0x60:
                times = stream.unsigned()
            case 0x70:
                times, skipped = 1, stream.unsigned()
            case 0x80:
                times, skipped = stream.unsigned(), stream.unsigned()
            case _:
                raise ValueError(f"operation {operation:#x} of a rebase is not known")
        for _ in range(times):
            yield address
            address = (address + POINTER_BYTES + skipped) % 2**64


def binds(content: bytes, segments: list[Segment], *, lazy: bool) -> Iterator[tuple[int, str]]:
    """Yield address and symbol of the pointers that BIND_OPCODE_* describe; each lazy one has its own end."""
    stream = Stream(content)
    address, symbol = 0, ""
    for operation, number in stream.operations():
        times, skipped = 0, 0
        match operation:
            case 0x00:
                if not lazy:
                    return
            case 0x10 | 0x30 | 0x50:  # which library, what kind of pointer
                pass
            case 0x20:
                stream.unsigned()
            case 0x40:
                symbol = stream.text()
            case 0x70:
                address = segments[number].address + stream.unsigned()
            case 0x80:
                address = (address + stream.unsigned()) % 2**64
            case 0x90:
                times = 1
            case 0xA0:
                times, skipped = 1, stream.unsigned()
            case 0xB0:
                times, skipped = 1, number * POINTER_BYTES
            case 0xC0:
                times, skipped = stream.unsigned(), stream.unsigned()
            case _:
                raise ValueError(f"operation {operation:#x} of a binding is not known")
        for _ in range(times):
            yield address, symbol
            address = (address + POINTER_BYTES + skipped) % 2**64


def read(image: bytes) -> Library:
    """Return what a file holds; raises ValueError for a file of another kind."""
    magic, _, _, _, commands = struct.unpack_from("<5I", image)
    if magic != MAGIC_64:
        raise ValueError("not a 64-bit Mach-O file of one architecture")
    library = Library(image)
    at, described = 32, False
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", image, at)
        if command == LC_SEGMENT_64:
            read_segment(library, at)
        elif command == LC_SYMTAB:
            read_symbols(library, *struct.unpack_from("<4I", image, at + 8))
        elif command == LC_DYLD_INFO_ONLY:
            described = True
            parts = struct.unpack_from("<8I", image, at + 8)
            rebase, bind, weak, lazy = (
                image[first : first + length] for first, length in zip(parts[::2], parts[1::2], strict=True)
            )
            if weak.strip(b"\0"):
                raise ValueError("weak bindings are not followed")
            library.rebased = list(rebases(rebase, library.segments))
            library.bound = [
                *binds(bind, library.segments, lazy=False),
                *binds(lazy, library.segments, lazy=True),
            ]
        at += size
    if not described:
        raise ValueError("the file has no LC_DYLD_INFO_ONLY")
    return library


def read_segment(library: Library, at: int) -> None:
    """Add a segment and its sections."""
    address, size, first, length, _, _, sections, _ = struct.unpack_from("<4Q4I", library.image, at + 24)
    library.segments.append(Segment(address, size, first, length))
    for i in range(sections):
        name, _, start, extent = struct.unpack_from("<16s16s2Q", library.image, at + 72 + 80 * i)
        library.sections[name.rstrip(b"\0").decode()] = start, extent


def read_symbols(library: Library, first: int, number: int, names: int, _: int) -> None:
    """Add the symbols that are defined in a section."""
    for i in range(number):
        name, kind, _, _, value = struct.unpack_from("<I2BHQ", library.image, first + 16 * i)
        if kind & 0x0E == 0x0E:
            end = library.image.index(0, names + name)
            library.defined[library.image[names + name : end].decode()] = value
