"""The folders of private clusters: made, locked while their keeper lives, and removed when it died.

All clusters of a user live below one folder in the place for temporary files, `pgsweep-UID`, so that any
later run finds what a killed one left. A run folder holds:

    cluster.json   where the data directory and the memory cgroup are
    server.log     what the server and initdb said
    s/             the socket, mode 0700
    data/          the data directory (elsewhere when the caller names a place with more room)

A run folder is alive as long as someone holds the lock (flock) on the folder itself; the kernel drops the
lock with the last process that had it, however that process ended. There is no lock file to become stale.
The common folder is locked while run folders are made or reaped, and removed with the last of them.

The data directory belongs to the server's user, who may put anything there and is not trusted where we are
root: no file in it leads to another one, and its contents are used only on objects of the same user.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pgsweep.commands import this_command
from pgsweep.errors import ClusterError
from pgsweep.files import write_whole
from pgsweep.host import cgroup
from pgsweep.host.processes import end_processes, is_abandoned_segment, processes_in, runs_as, works_in
from pgsweep.plain import shell_word
from pgsweep.regular import open_of, read_bounded

_STATE_FILE = "cluster.json"
_RUN_PREFIX = "c-"
# sun_path has 108 bytes; "/c-xxxxxxxx/s/.s.PGSQL.5432" and its terminator follow the common folder.
_LONGEST_BASE = 70
_IPC_RMID = 0
_MOST_PID_FILE_BYTES = 64 << 10


class RunState(NamedTuple):
    """What must be removed with a run folder and is not in it.

    Attributes:
        data_directory: absolute path.
        cgroup: path of the memory cgroup, or empty.
        owner_pid: the process that made the cluster, for messages.
    """

    data_directory: str
    cgroup: str
    owner_pid: int


class RunFolder(NamedTuple):
    """A run folder that we hold the lock of.

    Attributes:
        path: the folder.
        lock_descriptor: the open folder that carries the lock; whoever inherits it shares the lock.
    """

    path: Path
    lock_descriptor: int


def _common_folder() -> Path:
    try:
        base = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ClusterError(
            "there is no folder to make a private server in",
            cause="neither TMPDIR nor /tmp, /var/tmp or the present folder can be written to by this user",
            hint=f"name one: TMPDIR=/dev/shm {this_command()}",
        ) from error
    if len(str(base)) > _LONGEST_BASE:
        base = Path("/tmp")  # noqa: S108 - the only short place there always is; made 0711 and checked below
    return base.resolve() / f"pgsweep-{os.getuid()}"


@contextmanager
def _locked_common_folder() -> Iterator[Path]:
    """Hold the lock of the common folder, which is made where it is missing.

    Raises:
        ClusterError: someone else made it, so that it cannot be trusted.
    """
    path = _common_folder()
    while True:
        with suppress(FileExistsError):
            path.mkdir(mode=0o711)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # removed by another run just now
        except OSError as error:
            raise ClusterError(
                f"{path} cannot be used", cause=str(error), hint=f"remove it: rm -r {shell_word(str(path))}"
            ) from error
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ClusterError(
                    f"{path} cannot be trusted",
                    cause="another user made it, or others may write to it",
                    hint="remove it, or set TMPDIR to a folder of your own",
                )
            # The umask may have taken the permission that the server's user needs to pass through.
            os.fchmod(descriptor, 0o711)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _same_folder(path, descriptor):
                continue  # removed while we waited
            yield path
            return
        finally:
            os.close(descriptor)


def _same_folder(path: Path, descriptor: int) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


def make_run_folder() -> RunFolder:
    """Make a fresh run folder and take its lock.

    Raises:
        ClusterError: the common folder cannot be used, or the disk is full.
    """
    with _locked_common_folder() as common:
        try:
            path = Path(tempfile.mkdtemp(prefix=_RUN_PREFIX, dir=common))
            path.chmod(0o711)
        except OSError as error:
            raise ClusterError(f"cannot make a folder in {common}", cause=str(error)) from error
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return RunFolder(path, descriptor)


def write_state(run: Path, state: RunState) -> None:
    """Write what must be removed with the run folder; complete or not at all."""
    write_whole(run / _STATE_FILE, json.dumps(state._asdict()).encode())


def read_state(run: Path) -> RunState | None:
    """Return what was written; None if the run ended before it wrote."""
    try:
        return RunState(**json.loads((run / _STATE_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remove_run(run: Path) -> None:
    """End the server of a run folder at once and remove everything that belongs to it.

    The caller holds the folder's lock. What is already gone is skipped, so that it can be repeated.
    """
    state = read_state(run)
    if state is not None:
        data_directory = Path(state.data_directory)
        owner = _owner(data_directory)
        if owner is not None:
            end_processes(
                processes_in(data_directory),
                signal.SIGQUIT,
                belongs=lambda pid: works_in(pid, data_directory) and runs_as(pid, owner),
            )
            _remove_shared_memory_segment(data_directory, owner)
        group = cgroup.reopen(Path(state.cgroup)) if state.cgroup else None
        if group is not None:
            end_processes(group.processes(), signal.SIGKILL)
            group.remove()
        shutil.rmtree(data_directory, ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)
    with suppress(OSError):
        run.parent.rmdir()  # only when it was the last


def _owner(folder: Path) -> int | None:
    """Return who owns a folder; None where there is none."""
    try:
        status = folder.lstat()
    except OSError:
        return None
    return status.st_uid if stat.S_ISDIR(status.st_mode) else None


def postmaster_lines(data_directory: Path, owner: int) -> list[str]:
    """Return the lines of postmaster.pid (pidfile.h); none where there is no such file of the owner's."""
    path = data_directory / "postmaster.pid"
    try:
        with os.fdopen(open_of(path, owner, os.O_RDONLY), "rb") as file:
            return read_bounded(file, _MOST_PID_FILE_BYTES, path).decode(errors="replace").splitlines()
    except OSError:
        return []


def _remove_shared_memory_segment(data_directory: Path, owner: int) -> None:
    """Remove the small System V segment that a killed postmaster leaves (line 7 of postmaster.pid: key, id).

    A postmaster that ends by itself, also by SIGQUIT, removes both the segment and the file. A segment that
    somebody else made, or that a process uses, is not what was left, whatever the file says.
    """
    try:
        segment_id = int(postmaster_lines(data_directory, owner)[6].split()[1])
    except (IndexError, ValueError):
        return
    if is_abandoned_segment(segment_id, owner):
        ctypes.CDLL(None, use_errno=True).shmctl(segment_id, _IPC_RMID, None)


def reap_leftovers() -> list[Path]:
    """Remove the clusters of runs that were killed together with their keepers.

    Returns:
        The run folders that were removed.
    """
    removed = []
    if not _common_folder().exists():
        return []
    with _locked_common_folder() as common:
        for run in sorted(common.glob(_RUN_PREFIX + "*")):
            try:
                descriptor = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_run(run)
                removed.append(run)
            except BlockingIOError:
                continue
            finally:
                os.close(descriptor)
        with suppress(OSError):
            common.rmdir()
    return removed
