"""Places to run a server in, made of the kernel's own parts; all that is made is removed, also on failure."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from pgsweep.host import cgroup
from pgsweep.host.group_tree import Groups, groups_of
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import PGSWEEP
from tests.fix_process import wait_until

_NUMBERS = itertools.count()


def supervisor_of(pid: int | None) -> int:
    """Return the parent of a postmaster, which starts it again."""
    return int(re.findall(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0])


@contextmanager
def mounted_v1(controller: str, folder: Path) -> Iterator[Path]:
    """Mount a hierarchy of version 1 of a controller."""
    top = folder / controller
    top.mkdir()
    words = ["mount", "-t", "cgroup", "-o", controller, "none", str(top)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"needs root and the {controller} controller in version 1")
    try:
        yield top
    finally:
        subprocess.run(["umount", str(top)], check=True)


@contextmanager
def group_in(above: Path, *, name: str = "") -> Iterator[Path]:
    """Make a group with a name of its own; what is in it when it ends goes to the one above."""
    folder = above / (name or f"pgsweep-test-{os.getpid()}-{next(_NUMBERS)}")
    folder.mkdir()
    try:
        yield folder
    finally:
        wait_until(lambda: _emptied(folder, above), 30, f"{folder} is not empty")


def _emptied(folder: Path, above: Path) -> bool:
    try:
        for pid in (folder / "cgroup.procs").read_text().split():
            (above / "cgroup.procs").write_text(pid)
        folder.rmdir()
    except OSError:
        return False
    return True


@contextmanager
def joined(cluster: Cluster, group: Path) -> Iterator[None]:
    """Put a server, and what starts it again, in a group while this lasts."""
    pid = cluster.postmaster_pid
    assert pid is not None
    controller = "memory" if list(group.glob("memory.*")) else "hugetlb"
    before = groups_of(pid, controller)
    home = before.folders[0] if isinstance(before, Groups) and before.folders else group.parent
    move([pid, supervisor_of(pid), *children_of(pid)], group)
    try:
        yield
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            move([int(member)], home)


def move(pids: list[int], group: Path) -> None:
    for pid in pids:
        try:
            (group / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            continue


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


HIDE_CGROUPS = "mount -t tmpfs none /sys/fs/cgroup"
"""No cgroups are mounted."""

OWN_MEMORY_CGROUPS = (
    "mount -t tmpfs none /sys/fs/cgroup; mkdir /sys/fs/cgroup/memory; "
    "mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory"
)
"""Memory cgroups as a namespace of its own shows them."""


def run_inside(
    words: list[str],
    *,
    group: Path | None = None,
    first: str = "",
    namespaces: str = "--mount",
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run pgsweep as in a container: in a group, then in namespaces of its own, with other mounts.

    Args:
        words: of the command line.
        group: that it joins first.
        first: commands of a shell that change the mounts.
        namespaces: options of unshare(1).
        cwd: where it runs.
    """
    enter = f"echo $$ > {group}/cgroup.procs; " if group is not None else ""
    inner = f'mount --make-rprivate / && {first or ":"} && exec {PGSWEEP} "$@"'
    script = f"{enter}exec unshare {namespaces} sh -c '{inner}' sh \"$@\""
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words], capture_output=True, text=True, check=False, cwd=cwd
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"needs namespaces: {done.stderr}")
    return done


def memory_top() -> Path:
    """Return the folder in which memory cgroups of version 1 can be made."""
    found = cgroup.find_parent()
    if found is None or found[1] != 1:
        pytest.skip("needs memory cgroups of version 1 that may be made here")
    return found[0]


@contextmanager
def started_with(
    cluster: Cluster,
    *options: str,
    by: Path | None = None,
    first: str = "",
    namespaces: tuple[str, ...] = ("--mount",),
) -> Iterator[None]:
    """Let a server run that was started with other options, or by another program, while this lasts.

    Args:
        cluster: whose server it is.
        options: of the command line, after its own.
        by: a program that gets the command line of the server, and is its parent.
        first: commands of a shell that root runs before, with mounts of their own.
        namespaces: options of unshare(1).
    """
    user = cluster._user
    words = [str(cluster.bindir / "postgres"), "-D", str(cluster.data_directory), *options]
    become = f"setpriv --reuid {user.uid} --regid {user.gid} --clear-groups"
    inner = f'mount --make-rprivate / && {first or ":"} && exec {become} "$@"'
    started = ["unshare", *namespaces, "sh", "-c", inner, "sh", *([] if by is None else [str(by)]), *words]
    cluster.stop()
    parent = subprocess.Popen(
        started,
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: parent.poll() is not None or answers(cluster), 60)
        assert parent.poll() is None, f"it does not start: {words}"
        yield
    finally:
        if parent.poll() is None:
            lines = (cluster.data_directory / "postmaster.pid").read_text().splitlines()
            os.kill(int(lines[0]), signal.SIGINT)
            parent.wait(60)
        cluster.start()


def answers(cluster: Cluster) -> bool:
    """Return whether a server takes connections."""
    try:
        psycopg.connect(cluster.conninfo()).close()
    except psycopg.OperationalError:
        return False
    return True
