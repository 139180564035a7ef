"""Tablespaces whose path holds links that mean something else outside the server's mount namespace."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from pgsweep.host.datafiles import MAX_LINKS, DataFiles, find_data_files, resolve_in_root
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cluster import answers
from tests.fix_process import wait_until

_OPENAT2 = 437  # asm-generic/unistd.h; only alpha has another
_RESOLVE_IN_ROOT = 0x10  # include/uapi/linux/openat2.h


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with folders, a file and links; beside it what only a walk that leaves it can meet."""
    root = tmp_path / "root"
    (root / "opt/real/ts").mkdir(parents=True)
    (root / "srv/other").mkdir(parents=True)
    (root / "file").write_text("")
    (tmp_path / "outside").mkdir()
    links = {
        "opt/link": "/opt/real",
        "opt/chain": "/srv/hop",
        "srv/hop": "/opt/link/",
        "opt/beside": "real/./ts",
        "srv/up": "../opt//real",
        "srv/other/far_up": "../../../../../../opt/link",
        "opt/last": "/opt/link/ts",
        "opt/through": "link/../../srv",
        "slash": "/",
        "escape": "../outside",
        "outside": str(tmp_path / "outside"),
        "nowhere": "/opt/missing",
        "to_file": "/file",
        "self": "self",
        "ping": "/pong",
        "pong": "/ping",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


FOUND = {
    "/opt/real/ts": "opt/real/ts",
    "opt/real/ts/": "opt/real/ts",
    "/opt/link/ts": "opt/real/ts",
    "/opt/chain/ts": "opt/real/ts",
    "/opt/beside": "opt/real/ts",
    "/srv/up/ts": "opt/real/ts",
    "/srv/other/far_up/ts": "opt/real/ts",
    "/opt/last": "opt/real/ts",
    "/opt/through/other": "srv/other",
    # The parent is that of the folder, not of the link's name.
    "/opt/chain/../real": "opt/real",
    "/slash/opt//./link": "opt/real",
    "/..": "",
    "/../../../../opt/link/..": "opt",
    "/": "",
    "/to_file": "file",
}
NOT_FOUND = {
    "/nowhere": errno.ENOENT,
    "/opt/link/missing": errno.ENOENT,
    "/missing/..": errno.ENOENT,
    "/escape": errno.ENOENT,
    "/outside": errno.ENOENT,
    "/file/ts": errno.ENOTDIR,
    "/to_file/ts": errno.ENOTDIR,
    "/file/..": errno.ENOTDIR,
    "/self": errno.ELOOP,
    "/ping/ts": errno.ELOOP,
}


@pytest.mark.parametrize(("path", "expected"), FOUND.items())
def test_links_are_followed_below_the_root(root: Path, path: str, expected: str) -> None:
    assert resolve_in_root(root, path) == root / expected


@pytest.mark.parametrize(("path", "expected"), NOT_FOUND.items())
def test_what_the_server_would_not_find_is_an_error(root: Path, path: str, expected: int) -> None:
    with pytest.raises(OSError) as caught:
        resolve_in_root(root, path)
    assert caught.value.errno == expected


def test_forty_links_and_no_more(root: Path) -> None:
    (root / "chain0").mkdir()
    for number in range(MAX_LINKS + 1):
        (root / f"chain{number + 1}").symlink_to(f"/chain{number}")
    assert resolve_in_root(root, f"/chain{MAX_LINKS}") == root / "chain0"
    with pytest.raises(OSError) as caught:
        resolve_in_root(root, f"/chain{MAX_LINKS + 1}")
    assert caught.value.errno == errno.ELOOP
    assert kernels_answer(root, f"/chain{MAX_LINKS}") == str(root / "chain0")
    assert kernels_answer(root, f"/chain{MAX_LINKS + 1}") == errno.ELOOP


@pytest.mark.parametrize("path", [*FOUND, *NOT_FOUND])
def test_the_kernel_agrees(root: Path, path: str) -> None:
    try:
        ours: str | int | None = str(resolve_in_root(root, path))
    except OSError as error:
        ours = error.errno
    assert ours == kernels_answer(root, path)


def kernels_answer(root: Path, path: str) -> str | int:
    """Return the path that openat2(RESOLVE_IN_ROOT) opens, or its errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.open(root, os.O_PATH | os.O_CLOEXEC)
    try:
        how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
        number = libc.syscall(
            *(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how)), ctypes.c_size_t(ctypes.sizeof(how))
        )
    finally:
        os.close(folder)
    if number < 0:
        if ctypes.get_errno() in {errno.ENOSYS, errno.EPERM}:
            pytest.skip("this kernel, or its seccomp filter, has no openat2")
        return ctypes.get_errno()
    try:
        return str(Path(f"/proc/self/fd/{number}").readlink())
    finally:
        os.close(number)


def test_a_server_with_links_of_its_own() -> None:
    """In the server's mounts a link of a tablespace's path leads elsewhere than the same link outside."""
    if os.geteuid() != 0:
        pytest.skip("making namespaces needs root")
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("this kernel lets nobody make namespaces")
    with Cluster.create(settings={"shared_buffers": "16MB", "autovacuum": "off"}) as cluster:
        owner = cluster.data_directory.stat()
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("SET allow_in_place_tablespaces = on")
            for name in ("linked", "relative", "lost", "in_place"):
                place = cluster.run_directory / name
                if name != "in_place":
                    place.mkdir()
                    os.chown(place, owner.st_uid, owner.st_gid)
                location = "" if name == "in_place" else place
                connection.execute(f"CREATE TABLESPACE {name} LOCATION '{location}'".encode())
                connection.execute(f"CREATE TABLE t_{name} (n int PRIMARY KEY) TABLESPACE {name}".encode())
            rows = connection.execute("SELECT spcname, oid FROM pg_tablespace").fetchall()
            spaces: dict[str, int] = dict(rows)
        assert cluster.postmaster_pid is not None
        before = find_data_files(cluster.postmaster_pid, cluster.version_num)
        assert before.unreadable == []
        assert {fork[0] for fork in before.forks} == set(spaces.values())
        cluster.stop()

        mounted = cluster.run_directory / "mounted"
        mounted.mkdir()
        # The same names outside, and other files below them.
        decoy = mounted / "real/ts"
        shutil.copytree(cluster.run_directory / "linked", decoy)
        for database in decoy.glob("PG_*/*"):
            (database / "4000000001").write_text("")
        links = cluster.data_directory / "pg_tblspc"
        for name, target in {
            "linked": str(mounted / "link/ts"),
            "relative": "../../relative",
            "lost": str(mounted / "nowhere/ts"),
        }.items():
            link = links / str(spaces[name])
            link.unlink()
            link.symlink_to(target)
        script = (
            f"mount -t tmpfs -o mode=755 tmpfs {mounted} && mkdir -p {mounted}/real/ts && "
            f"ln -s {mounted}/real {mounted}/link && "
            f"mount --bind {cluster.run_directory}/linked {mounted}/real/ts && "
            f"exec setpriv --reuid={owner.st_uid} --regid={owner.st_gid} --clear-groups "
            f"{cluster.bindir}/postgres -D {cluster.data_directory}"
        )
        server = subprocess.Popen(  # each program becomes the next, so this is the postmaster
            ["unshare", "--mount", "sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: answers(cluster.conninfo()), seconds=30)
            after = find_data_files(server.pid, cluster.version_num)
            inodes = {Path(path).stat().st_ino for path in after.paths}
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
        mine = list((cluster.run_directory / "linked").glob("PG_*/*/*"))
        assert mine
        assert {path.stat().st_ino for path in mine} <= inodes
    for name in ("linked", "relative", "in_place"):
        assert of_space(after, spaces[name]) == of_space(before, spaces[name])
    assert of_space(after, spaces["lost"]) == []
    assert after.unreadable == [f"/proc/{server.pid}/cwd/pg_tblspc/{spaces['lost']}"]


def of_space(files: DataFiles, tablespace: int) -> list[tuple[int, int, int, int]]:
    return [fork for fork in files.forks if fork[0] == tablespace]
