"""Control runs: the same small work again and again, between what is measured.

What it takes differs only with what else the machine does, so its spread is the machine's own noise.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_HASHED_BYTES: Final = 4 << 20
_TIMES: Final = 8
_DISK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class ControlTimes:
    """What one control run took.

    Attributes:
        processor_seconds: a fixed computation of one thread.
        disk_seconds: a file of 8 MB written, flushed to the disk, and read from there.
    """

    processor_seconds: float
    disk_seconds: float


class Control:
    """Does control runs; a context, because it has a file, which has no name and leaves nothing behind.

    Args:
        folder: where the file is made; it should be on the disk of what is measured.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._content = os.urandom(_HASHED_BYTES)
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (closed at the end)

    def run(self) -> ControlTimes:
        """Do the work once and return what it took."""
        begin = time.monotonic()
        for _ in range(_TIMES):
            hashlib.sha256(self._content).digest()
        computed = time.monotonic()
        descriptor = self._file.fileno()
        for offset in range(0, _DISK_BYTES, _HASHED_BYTES):
            os.pwrite(descriptor, self._content, offset)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(descriptor, _DISK_BYTES, 0)
        return ControlTimes(computed - begin, time.monotonic() - computed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
