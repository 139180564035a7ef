"""Hot standbys and copies of private clusters: servers with one system identifier."""

from __future__ import annotations

import os
import shutil
import subprocess

import psycopg

from pgsweep.pg.private.cluster import Cluster

PRIMARY = {"shared_buffers": "8MB", "wal_level": "replica", "max_wal_senders": "2"}
"""What a primary must be set to."""

_NOT_SMALLER = (
    "max_connections",
    "max_prepared_transactions",
    "max_locks_per_transaction",
    "max_wal_senders",
    "max_worker_processes",
)
"""Settings that must not be smaller on a standby (manual, Hot Standby: Administrator's Overview)."""


def standby_of(primary: Cluster) -> Cluster:
    """Return a hot standby, made as pg_basebackup makes one."""
    as_large = {name: value for name, value in primary.settings.items() if name in _NOT_SMALLER}
    standby = Cluster.create(primary.bindir, {**PRIMARY, **as_large}, start=False)
    data, owner = standby.data_directory, standby.data_directory.stat()
    configuration = (data / "postgresql.conf").read_text()
    shutil.rmtree(data)
    program = primary.binaries.program("pg_basebackup")
    subprocess.run([program, "-D", data, "-d", primary.conninfo(), "-c", "fast", "-X", "stream"], check=True)
    (data / "postgresql.conf").write_text(configuration)
    (data / "standby.signal").touch()
    for path in (data, *data.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    standby.settings["primary_conninfo"] = primary.conninfo()
    standby.start()
    return standby


def copy_of(original: Cluster) -> Cluster:
    """Return a server on a copy of the files of another, which is restarted: both run, and are alike."""
    copy = Cluster.create(original.bindir, start=False)
    configuration = (copy.data_directory / "postgresql.conf").read_text()
    shutil.rmtree(copy.data_directory)
    original.stop()
    subprocess.run(["cp", "--archive", original.data_directory, copy.data_directory], check=True)
    original.start()
    (copy.data_directory / "postgresql.conf").write_text(configuration)
    copy.start()
    return copy


def promote(standby: Cluster) -> None:
    """Make a primary of a standby; it has a timeline of its own then."""
    with psycopg.connect(standby.conninfo(), autocommit=True) as connection:
        assert connection.execute("SELECT pg_promote()").fetchone() == (True,)
