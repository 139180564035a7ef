"""Data directories of private clusters: copies of one that initdb made, instead of a run of initdb each.

initdb takes a second of a processor, and the tests make more than a hundred clusters. As in PostgreSQL's own
tests (INITDB_TEMPLATE) it runs once for each server; later clusters get a copy of its data directory, with a
system identifier of their own. A cluster that is closed leaves its data directory to later ones, after what
is not as in the template was put back: to make a thousand files costs more than all else that a cluster
needs. The processes of pytest share these, and those that tests fork or start may (`share_templates`). What
the program pgsweep does is untouched.

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

from pgsweep.errors import ClusterError
from pgsweep.pg.private.cluster import Cluster

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
    initdb, start, close = Cluster._initdb, Cluster.start, Cluster.close
    templates: dict[Path, Path] = {}
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
            templates[cluster.data_directory] = template
            if _take(cluster.data_directory, template):
                _set_system_identifier(cluster.data_directory, secrets.randbits(63))
                return
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

    def leave_and_close(cluster: Cluster) -> None:
        template = templates.pop(cluster.data_directory, None)
        if template is not None and cluster._owner == os.getpid():
            with suppress(ClusterError):  # its keeper was killed
                cluster.stop(immediately=True)
                _leave(cluster.data_directory, template)
        close(cluster)

    Cluster._initdb = copy_or_make  # type: ignore[assignment, method-assign]
    Cluster.close = leave_and_close  # type: ignore[assignment, method-assign]
    Cluster.start = start_and_note  # type: ignore[assignment, method-assign]


def _take(data_directory: Path, template: Path) -> bool:
    """Put a data directory that was left in place of an empty one; return whether there was any."""
    unused = _unused(template)
    for left in unused.iterdir() if unused.exists() else ():
        with suppress(OSError):  # another process was first
            left.rename(data_directory)
            return True
    return False


def _leave(data_directory: Path, template: Path) -> None:
    """Leave the data directory of a server that has ended to later ones, as the template is; if it can be."""
    if (data_directory / "postmaster.pid").exists():
        return  # perhaps it has not ended
    aside = template.parent / secrets.token_hex(8)
    with suppress(OSError):  # such as a mount in it, or another file system
        data_directory.rename(aside)
        try:
            if changed := _put_back(template, aside, Path()):
                subprocess.run([*_COPY, "--parents", "--", *changed, aside], cwd=template, check=True)
            _unused(template).mkdir(exist_ok=True)
            aside.rename(_unused(template) / aside.name)
        except (OSError, subprocess.CalledProcessError):
            shutil.rmtree(aside)


def _unused(template: Path) -> Path:
    return template.with_name(f"{template.name} unused")


def _put_back(template: Path, data_directory: Path, below: Path) -> list[Path]:
    """Remove what is not as in the template; return what must be copied again, as paths from its top."""
    with os.scandir(data_directory / below) as entries:
        there = {entry.name: entry for entry in entries}
    changed = []
    with os.scandir(template / below) as entries:
        for entry in entries:
            other = there.pop(entry.name, None)
            if other is not None and _is_as(entry, other):
                if entry.is_dir(follow_symlinks=False):
                    changed += _put_back(template, data_directory, below / entry.name)
                continue
            changed.append(below / entry.name)
            if other is not None:
                _remove(other)
    for other in there.values():
        _remove(other)
    return changed


def _is_as(entry: os.DirEntry[str], other: os.DirEntry[str]) -> bool:
    """Return whether a file or folder has the kind, owner and size of another, and was not written since."""
    one, two = (each.stat(follow_symlinks=False) for each in (entry, other))
    if (one.st_mode, one.st_uid, one.st_gid) != (two.st_mode, two.st_uid, two.st_gid):
        return False
    return entry.is_dir(follow_symlinks=False) or (one.st_size, one.st_mtime_ns) == (
        two.st_size,
        two.st_mtime_ns,
    )


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
    else:
        Path(entry.path).unlink()


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
    crc = _crc(before[:200])
    place = 200
    while before[place : place + 4] != _checksum_of(crc):
        crc = _crc(before[place : place + 4], crc)
        place += 4
    changed = identifier.to_bytes(8, "little") + before[8:place]
    _overwrite(control, 0, changed + _checksum_of(_crc(changed)))
    (segment,) = (path for path in (data_directory / "pg_wal").iterdir() if path.is_file())
    _overwrite(segment, _SYSTEM_IDENTIFIER_AT, identifier.to_bytes(8, "little"))


def _crc(data: bytes, crc: int = 0xFFFFFFFF) -> int:
    """Return the CRC-32C of some bytes after others (port/pg_crc32c.h), before its last step."""
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


def _checksum_of(crc: int) -> bytes:
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "little")


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)
