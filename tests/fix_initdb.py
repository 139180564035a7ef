"""Data directories of private clusters: copies of one that initdb made, instead of a run of initdb each.

initdb takes a second of a processor, and the tests make more than a hundred clusters. As in PostgreSQL's own
tests (INITDB_TEMPLATE) it runs once for each server; later clusters get a copy of its data directory, with a
system identifier of their own. The processes of pytest share these, and those that tests fork or start may
(`share_templates`). What the program pgsweep does is untouched.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pgsweep.pg.cluster import Cluster

_POLYNOMIAL = 0x82F63B78
_SYSTEM_IDENTIFIER_AT = 24
"""In the first page of a segment of WAL, after the short header (XLogLongPageHeaderData, xlog_internal.h)."""

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
    share_templates()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _MADE in config.stash:
        del os.environ[TEMPLATES]
        shutil.rmtree(config.stash[_MADE])


def share_templates() -> None:
    """Copy data directories in this process too."""
    folder = Path(os.environ[TEMPLATES])
    initdb = Cluster._initdb
    if initdb.__module__ == __name__:
        return

    def copy_or_make(cluster: Cluster, options: Sequence[str]) -> None:
        # Copies of a server's files (own_server_files) share the template of their version.
        name = " ".join((cluster.binaries.version, *options)).replace("/", "_")
        template = folder / name
        if template.exists():
            subprocess.run(["cp", "-a", f"{template}/.", cluster.data_directory], check=True)
            _set_system_identifier(cluster.data_directory, secrets.randbits(63))
            return
        initdb(cluster, options)
        whole = Path(tempfile.mkdtemp(dir=folder)) / "data"
        subprocess.run(["cp", "-a", cluster.data_directory, whole], check=True)
        with suppress(OSError):  # another process was first
            whole.rename(template)

    Cluster._initdb = copy_or_make  # type: ignore[assignment, method-assign]


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
