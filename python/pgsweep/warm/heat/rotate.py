"""Older files beside the newest: FILE, FILE.1, FILE.2, ... as logrotate names them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pgsweep.errors import HeatError


def kept_files(path: Path) -> list[Path]:
    """Return the older files beside this one, the youngest first."""
    pattern = re.compile(re.escape(path.name) + r"\.(\d+)")
    found = []
    with contextlib.suppress(OSError):
        for file in path.parent.iterdir():
            match = pattern.fullmatch(file.name)
            if match is not None:
                found.append((int(match.group(1)), file))
    return [file for _, file in sorted(found)]


@contextlib.contextmanager
def rotate(path: Path, keep: int) -> Iterator[None]:
    """Let the body replace the file, and keep what it held as the youngest of the older ones.

    The name itself always holds a whole file, whatever cuts this short. Where the body fails, nothing was
    moved.

    Args:
        path: may not exist yet.
        keep: how many files there shall be at the end, this one among them.

    Raises:
        HeatError: the folder does not allow it.
    """
    former = path.with_name(f".{path.name}.former")
    try:
        former.unlink(missing_ok=True)
        if keep > 1 and path.exists():
            os.link(path, former)
    except OSError as error:
        raise HeatError(f"cannot keep the former `{path}`: {error.strerror}") from error
    try:
        yield
    except BaseException:
        former.unlink(missing_ok=True)
        raise
    try:
        if former.exists():
            _move_up(path, keep)
            former.rename(_numbered(path, 1))
        for file in kept_files(path):
            if int(file.name.rpartition(".")[2]) >= keep > 1:
                file.unlink()
    except OSError as error:
        raise HeatError(f"cannot keep the former `{path}`: {error.strerror}") from error


def _move_up(path: Path, keep: int) -> None:
    for number in range(keep - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            _numbered(path, number).rename(_numbered(path, number + 1))


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
