"""What `pgsweep --version` says: pgsweep, how its Rust half was built, and the libpq in use.

The whole answer takes less than 80 ms, so libpq is asked directly: importing the driver would take five times
as long as all the rest, and importing pathlib as long as the native module.
"""

from __future__ import annotations

import os
import sys


def version_text() -> str:
    """Return the text of `--version`, with its line ends."""
    from pgsweep._native import __version__, build_profile

    return f"pgsweep {__version__} (native module: {build_profile()} build)\n{_libpq_text()}\n"


def _libpq_text() -> str:
    """Return the version of the libpq that the driver will use.

    Its binary wheel brings a libpq in a folder beside the package; without the wheel it uses the system's.
    """
    import ctypes

    for folder in (os.path.join(entry, "psycopg_binary.libs") for entry in sys.path):  # noqa: PTH118
        if not os.path.isdir(folder):  # noqa: PTH112
            continue
        for name in os.listdir(folder):  # noqa: PTH208
            if name.startswith("libpq-"):
                number = ctypes.CDLL(os.path.join(folder, name)).PQlibVersion()  # noqa: PTH118
                return f"libpq {_dotted(number)} (from psycopg-binary)"
    from ctypes.util import find_library

    library = find_library("pq")
    if library is None:
        return "libpq not found: `pip install 'psycopg[binary]'`"
    return f"libpq {_dotted(ctypes.CDLL(library).PQlibVersion())}"


def _dotted(number: int) -> str:
    """Return `18.1` for 180001: since PostgreSQL 10 a version is major * 10000 + minor."""
    return f"{number // 10000}.{number % 10000}"
