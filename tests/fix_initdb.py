"""Data directories of private clusters: copies of one that initdb made, instead of a run of initdb each.

initdb takes a second of a processor, and the tests make more than a hundred clusters. As in PostgreSQL's own
tests (INITDB_TEMPLATE) it runs once for each server; later clusters get a copy of its data directory, with a
system identifier of their own. The processes of pytest share these, and those that tests fork or start may
(`share_templates`). What the program pgsweep does is untouched.

Beside them is noted which servers were started, so that fix_quick finds a test that starts one unmarked.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pgsweep.pg.cluster import Cluster

_POLYNOMIAL = 0x82F63B78
_SYSTEM_IDENTIFIER_AT = 24
"""In the first page of a segment of WAL, after the short header (XLogLongPageHeaderData, xlog_internal.h)."""

_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_TOPDIR_FL of linux/fs.h."""

_COPY = ("cp", "--archive", "--sparse=always")
"""Most of the first segment of WAL are zeros, a third of all that there is: they need not be written."""

TEMPLATES = "PGSWEEP_TEST_TEMPLATES"
"""The variable with the folder of these data directories."""

_MADE = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Have `Cluster.create` copy a data directory where it would run initdb again.

    Not in a fixture that all tests use: then all tests would count as tests that use a server (fix_quick).
    """
    if TEMPLATES not in os.environ:  # the processes of pytest-xdist inherit it
        config.stash[_MADE] = Path(tempfile.mkdtemp(prefix="pgsweep-initdb-"))
        os.environ[TEMPLATES] = str(config.stash[_MADE])
    share_templates(os.getpid())


def pytest_unconfigure(config: pytest.Config) -> None:
    if _MADE in config.stash:
        del os.environ[TEMPLATES]
        shutil.rmtree(config.stash[_MADE])


def servers_started() -> int:
    """Return how many servers this process of pytest and the commands that it forked have started."""
    notes = _notes(os.getpid())
    return notes.stat().st_size if notes.exists() else 0


def _notes(pytest_pid: int) -> Path:
    """Return the file with one byte for each start of a server."""
    return Path(os.environ[TEMPLATES], f"starts-{pytest_pid}")


def share_templates(pytest_pid: int) -> None:
    """Copy data directories in this process too, and note its servers as those of a process of pytest."""
    folder = Path(os.environ[TEMPLATES])
    starts = _notes(pytest_pid)
    initdb, start = Cluster._initdb, Cluster.start
    if initdb.__module__ == __name__:
        return

    def start_and_note(cluster: Cluster) -> None:
        with starts.open("ab") as notes:
            notes.write(b".")
        start(cluster)

    def copy_or_make(cluster: Cluster, options: Sequence[str]) -> None:
        # Copies of a server's files (own_server_files) share the template of their version.
        name = " ".join((cluster.binaries.version, *options)).replace("/", "_")
        template = folder / name
        spread_folders_below(cluster.run_directory.parent)
        if template.exists():
            base = cluster.data_directory / "base"
            base.mkdir(mode=0o700)
            spread_folders_below(base)
            subprocess.run([*_COPY, f"{template}/.", cluster.data_directory], check=True)
            _set_system_identifier(cluster.data_directory, secrets.randbits(63))
            return
        initdb(cluster, options)
        spread_folders_below(cluster.data_directory / "base")
        whole = Path(tempfile.mkdtemp(dir=folder)) / "data"
        subprocess.run([*_COPY, cluster.data_directory, whole], check=True)
        with suppress(OSError):  # another process was first
            whole.rename(template)

    Cluster._initdb = copy_or_make  # type: ignore[assignment, method-assign]
    Cluster.start = start_and_note  # type: ignore[assignment, method-assign]


def spread_folders_below(folder: Path) -> None:
    """Ask the file system to put new folders in this one far from each other (chattr +T), where it can.

    ext4 without a journal does not use an inode again for a minute and more after its file was removed
    (fs/ext4/ialloc.c, recently_deleted), and looks at each of them anew for every new file: where a thousand
    files of a cluster have just been removed, those of the next take ten times as long to make.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            flags = int.from_bytes(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)), sys.byteorder)
            fcntl.ioctl(descriptor, _SET_FLAGS, (flags | _TOP_FOLDER).to_bytes(8, sys.byteorder))
    finally:
        os.close(descriptor)


def _set_system_identifier(data_directory: Path, identifier: int) -> None:
    """Write another system identifier into the control file and into the only segment of WAL."""
    control = data_directory / "global/pg_control"
    before = control.read_bytes()
    # The checksum is the last field of the control data; its place differs by version.
    place = next(at for at in range(200, 512, 4) if before[at : at + 4] == _checksum(before[:at]))
    changed = identifier.to_bytes(8, "little") + before[8:place]
    _overwrite(control, 0, changed + _checksum(changed))
    (segment,) = (path for path in (data_directory / "pg_wal").iterdir() if path.is_file())
    _overwrite(segment, _SYSTEM_IDENTIFIER_AT, identifier.to_bytes(8, "little"))


def _checksum(data: bytes) -> bytes:
    """Return the CRC-32C of some bytes (port/pg_crc32c.h)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "little")


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)
