"""What root believes of the data directory of a private server, whose user may put anything there."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgsweep.host.processes import is_running, processes_in
from pgsweep.pg.private.identity import choose_server_user
from pgsweep.pg.private.rundir import RunState, make_run_folder, postmaster_lines, remove_run, write_state
from pgsweep.regular import NotRegular, open_of
from tests.fix_process import needs_root, wait_until

pytestmark = needs_root

_IPC_CREAT, _IPC_RMID = 0o1000, 0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder with the data directory of a server that was killed."""
    place = Path(tempfile.mkdtemp(prefix="pgs-", dir="/tmp"))
    place.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    made = make_run_folder()
    (made.path / "data").mkdir(mode=0o700)
    choose_server_user().give(made.path / "data")
    write_state(made.path, RunState(str(made.path / "data"), "", os.getpid()))
    yield made.path
    os.close(made.lock_descriptor)
    shutil.rmtree(place)


def as_server(command: str) -> subprocess.Popen[bytes]:
    """Start a command as the user of private servers."""
    user = choose_server_user()
    return subprocess.Popen(["sh", "-c", command], user=user.uid, group=user.gid, extra_groups=[], cwd="/")


def say(run: Path, segment_id: int, pid: int = 1) -> None:
    """Let the server's user write a postmaster.pid that names a segment of shared memory."""
    lines = f"{pid}\n{run}/data\n1\n5432\n/\n\n{segment_id:9d} {segment_id:9d}\nready\n"
    assert as_server(f"printf '{lines}' > {run}/data/postmaster.pid").wait() == 0


def segments() -> set[int]:
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {int(row.split()[1]) for row in rows}


def make_segment() -> int:
    segment: int = ctypes.CDLL(None).shmget(0, 4096, _IPC_CREAT | 0o600)
    assert segment >= 0
    return segment


_MAKE_SEGMENT = "import ctypes; print(ctypes.CDLL(None).shmget(0, 4096, 0o1600))"


def test_the_shared_memory_of_others_stays(run: Path) -> None:
    segment = make_segment()
    try:
        say(run, segment)
        remove_run(run)
        assert segment in segments()
        assert not run.exists()
    finally:
        ctypes.CDLL(None).shmctl(segment, _IPC_RMID, None)


def test_what_the_servers_user_left_behind_is_removed(run: Path) -> None:
    user = choose_server_user()
    made = subprocess.run(
        ["/usr/bin/python3", "-c", _MAKE_SEGMENT],
        user=user.uid,
        group=user.gid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        check=True,
    )
    segment = int(made.stdout)
    assert segment in segments()
    say(run, segment)
    remove_run(run)
    assert segment not in segments()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "planted", ["mkfifo {}", "ln -s /etc/passwd {}", "ln -s /dev/zero {}", "truncate -s 8G {}"]
)
def test_a_planted_postmaster_pid_is_neither_followed_nor_waited_for(run: Path, planted: str) -> None:
    path = run / "data" / "postmaster.pid"
    assert as_server(planted.format(path)).wait() == 0
    assert postmaster_lines(run / "data", choose_server_user().uid) == []
    remove_run(run)
    assert not run.exists()


def test_a_process_of_roots_that_works_there_is_not_ended(run: Path) -> None:
    ours = subprocess.Popen(["sleep", "600"], cwd=run / "data")
    theirs = as_server(f"cd {run}/data && exec sleep 600")
    try:
        wait_until(lambda: {ours.pid, theirs.pid} <= set(processes_in(run / "data")))
        remove_run(run)
        assert theirs.wait(10) < 0
        assert is_running(ours.pid)
    finally:
        ours.kill()
        ours.wait()


def test_root_writes_only_into_a_file_of_the_servers_user(run: Path) -> None:
    uid = choose_server_user().uid
    other = run / "other"
    other.write_text("root's")
    path = run / "data" / "postgresql.conf"
    # O_NOFOLLOW gives ELOOP, a FIFO without a reader ENXIO (open(2)).
    plants: list[tuple[Callable[[], object], type[OSError], int]] = [
        (lambda: path.symlink_to(other), OSError, errno.ELOOP),
        (lambda: os.link(other, path), NotRegular, errno.EPERM),
        (lambda: os.mkfifo(path), OSError, errno.ENXIO),
        (lambda: path.write_text("root's"), NotRegular, errno.EPERM),
    ]
    for plant, kind, number in plants:
        plant()
        with pytest.raises(OSError) as refused:
            open_of(path, uid, os.O_WRONLY | os.O_APPEND)
        assert (type(refused.value), refused.value.errno) == (kind, number)
        path.unlink()
    assert as_server(f"touch {path}").wait() == 0
    os.close(open_of(path, uid, os.O_WRONLY | os.O_APPEND))
