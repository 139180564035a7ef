"""The C library's allocator: how much memory it keeps of what was freed.

glibc gives each thread an arena of its own, up to eight for each processor, and keeps what is freed in an
arena for that arena (mallopt(3), malloc_trim(3)). A process of many threads that runs without end then
holds several times what it uses. Other C libraries have neither of the functions, and no such arenas: there
nothing is done, and the result says so.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8
"""malloc.h of glibc."""


def limit_arenas(most: int) -> bool:
    """Have at most this many arenas in this process; return whether it was done.

    Only arenas made from now on are limited, so it is called before threads are started. MALLOC_ARENA_MAX in
    the environment means the same, and is overruled.
    """
    libc = _glibc()
    return libc is not None and libc.mallopt(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(most)) == 1


def return_freed_memory() -> bool:
    """Return to the kernel what is free in all arenas; return whether there was an allocator to ask."""
    libc = _glibc()
    if libc is None:
        return False
    libc.malloc_trim(ctypes.c_size_t(0))
    return True


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    there = all(hasattr(libc, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim"))
    return libc if there else None
