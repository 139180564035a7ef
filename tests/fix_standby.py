"""Hot standbys of private clusters."""

from __future__ import annotations

import os
import shutil
import subprocess

from pgsweep.pg.cluster import Cluster

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
