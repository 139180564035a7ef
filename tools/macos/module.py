"""The native module as it is compiled for macOS on x86-64, loaded into Python on Linux.

Both systems have the same calling convention on this processor. So the machine code of the wheel runs here
as it is: its segments are copied into memory, its pointers are moved to that place, and what it calls is
bound, as macOS's dyld does it. Python's functions are those of this Python, those of libSystem are in
system.c and in glibc. What macOS itself does is not shown by this: its dyld, its kernel and its libraries.

As a plugin of pytest (``-p tools.macos.module``) it takes the place of the module built for Linux.
PGSWEEP_MACOS_WHEEL names the wheel, PGSWEEP_MACOS_SYSTEM the compiled system.c (``make test-macos``).
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import mmap
import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from types import ModuleType

from tools.macos.macho import Library, read

NAME = "pgsweep._native"
MEMBER = "pgsweep/_native.abi3.so"


def in_memory(library: Library, address_of: Callable[[str], int]) -> int:
    """Place a library in memory that stays, and return the address of its first byte there."""
    end = max(segment.address + segment.size for segment in library.segments)
    area = mmap.mmap(-1, end, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # Code that runs until the end of the process is in it: it is never freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(area))
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for segment in library.segments:
        content = library.image[segment.file_offset : segment.file_offset + segment.file_size]
        area[segment.address : segment.address + len(content)] = content
    for address in library.rebased:
        pointer = ctypes.c_uint64.from_address(base + address)
        pointer.value += base
    for address, symbol in library.bound:
        ctypes.c_uint64.from_address(base + address).value = address_of(symbol)
    return base


def finder(libraries: Sequence[ctypes.CDLL]) -> Callable[[str], int]:
    """Return what finds a symbol of macOS: system.c's mac_NAME, or the NAME of a library of Linux."""

    def address_of(symbol: str) -> int:
        name = symbol.removeprefix("_")
        for library, known_as in [
            (libraries[0], "mac_" + name.replace("$", "_")),
            *((library, name) for library in libraries),
        ]:
            try:
                function = getattr(library, known_as)
            except AttributeError:
                continue
            return ctypes.cast(function, ctypes.c_void_p).value or 0
        raise ImportError(f"{symbol} is neither in tools/macos/system.c nor in Linux's libraries")

    return address_of


def loaded(wheel: str, system: str) -> ModuleType:
    """Return the native module of a wheel for macOS on x86-64, initialised.

    Raises ImportError where it calls a function that is not known here, and ValueError for another file.
    """
    with zipfile.ZipFile(wheel) as archive:
        image = archive.read(MEMBER)
    library = read(image)
    replaced = ctypes.CDLL(system)
    names = ("libc.so.6", "libm.so.6", "libgcc_s.so.1")
    libraries = [replaced, *map(ctypes.CDLL, names), ctypes.pythonapi]
    base = in_memory(library, finder(libraries))

    first, _ = library.sections["__thread_data"]
    zeros, zero_bytes = library.sections["__thread_bss"]
    replaced.mac_set_thread_template(
        ctypes.c_void_p(base + first), ctypes.c_size_t(zeros + zero_bytes - first)
    )

    # PEP 489: the function returns the module's definition, from which the module is made and then executed.
    definition = ctypes.PYFUNCTYPE(ctypes.c_void_p)(base + library.defined["_PyInit__native"])()
    make = ctypes.pythonapi.PyModule_FromDefAndSpec2
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_int]
    execute = ctypes.pythonapi.PyModule_ExecDef
    execute.argtypes = [ctypes.py_object, ctypes.c_void_p]
    spec = importlib.machinery.ModuleSpec(NAME, None, origin=f"{wheel}/{MEMBER}")
    made: ModuleType = make(definition, spec, sys.api_version)
    made.__spec__, made.__file__ = spec, spec.origin
    execute(made, definition)
    return made


def install() -> ModuleType:
    """Put the module of the wheel in the place of the one built for Linux; before pgsweep uses that."""
    import pgsweep

    module = loaded(os.environ["PGSWEEP_MACOS_WHEEL"], os.environ["PGSWEEP_MACOS_SYSTEM"])
    sys.modules[NAME] = module
    pgsweep.__dict__["_native"] = module
    return module


def pytest_configure() -> None:
    """Use the module before a test is imported."""
    install()


def pytest_report_header() -> str:
    """Return the line of pytest's header that says which module is tested."""
    return f"native module: {sys.modules[NAME].__file__}"
