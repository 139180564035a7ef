"""Which libpq is in use.

It is asked directly where that is possible: importing psycopg takes several times as long as all the rest of
`pgsweep --version`, and importing pathlib as long as the native module.
"""

from __future__ import annotations

import os
import sys


def libpq_text() -> str:
    """Return the version of the libpq that psycopg uses, in words.

    The psycopg-binary wheel brings its own libpq in a folder beside the package; without the wheel psycopg
    uses the system's, which psycopg itself is asked for.
    """
    for folder in (os.path.join(entry, "psycopg_binary.libs") for entry in sys.path):  # noqa: PTH118
        if not os.path.isdir(folder):  # noqa: PTH112
            continue
        for name in os.listdir(folder):  # noqa: PTH208
            if name.startswith("libpq-"):
                import ctypes

                number = ctypes.CDLL(os.path.join(folder, name)).PQlibVersion()  # noqa: PTH118
                return f"libpq {_dotted(number)} (from psycopg-binary)"
    try:
        from psycopg import pq
    except ImportError:
        return "libpq not found: `pip install 'psycopg[binary]'`"
    return f"libpq {_dotted(pq.version())}"


def _dotted(number: int) -> str:
    """Return `18.1` for 180001: since PostgreSQL 10 a version is major * 10000 + minor."""
    return f"{number // 10000}.{number % 10000}"
