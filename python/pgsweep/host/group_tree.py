"""Where the cgroups of a process are, as far as they can be seen from here.

A process is in one group of each hierarchy, and every group above that one limits it too. From inside of a
container some or all of them are hidden: by a cgroup namespace, by a mount that begins below the root, or
because nothing is mounted. What is hidden may hold a limit, so it is told apart from what is not there.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pgsweep.host.procfile import lines_of, read_kernel_text

PROC = Path("/proc")
_FIRST_NAMESPACE = 0xEFFFFFFB
"""The inode of the host's own cgroup namespace (include/linux/proc_ns.h, PROC_CGROUP_INIT_INO)."""

_IN_VERSION_2 = {"blkio": "io"}


class Groups(NamedTuple):
    """The groups of a process by one controller.

    Attributes:
        folders: the process's own first, then those above it; none where only the root is.
        version: of the hierarchy.
        unseen: why there may be groups above these; None where the last is the root of the hierarchy.
    """

    folders: tuple[Path, ...]
    version: int
    unseen: str | None


class Unseen(NamedTuple):
    """The groups of a process cannot be seen from here.

    Attributes:
        why: in words.
    """

    why: str


def groups_of(pid: int, name: str, proc: Path = PROC) -> Groups | Unseen | None:
    """Return the groups of a process by a controller; None where this kernel does not use that controller.

    Args:
        pid: the process.
        name: of the controller, as in version 1.
    """
    try:
        mounts, paths = mounts_of(proc), paths_of(proc, str(pid))
    except OSError:
        return Unseen("/proc does not say in which cgroup the server is")
    controller = name if name in paths else ""
    if controller not in paths:
        return None
    path, version = Path(paths[controller]), 1 if controller else 2
    found: Groups | Unseen = Unseen(f"no {name} cgroups of the server's are mounted here")
    for point, root, kind, options in mounts:
        if not (kind == "cgroup" and name in options if controller else kind == "cgroup2"):
            continue
        if not path.is_relative_to(root) or ".." in path.relative_to(root).parts:
            found = Unseen(f"the server is in the cgroup {path}, which lies outside of those mounted here")
            continue
        top = Path(point)
        folder = top / path.relative_to(root)
        if not (folder / "cgroup.procs").exists():
            continue
        above = [folder, *folder.parents]
        groups = tuple(above[: above.index(top) + 1])
        is_root = _is_root(top, version)
        if version == 2 and not _offers(top, _IN_VERSION_2.get(name, name)):
            if is_root:
                return None
            return Unseen(f"what limits {name} is decided in cgroups above the topmost one that is seen here")
        return Groups(groups, version, None if is_root else f"cgroups above {path} cannot be seen from here")
    if path == Path("/") and _is_first_namespace(proc):
        return Groups((), version, None)
    return found


def _is_root(top: Path, version: int) -> bool:
    """Return whether a mounted group is the root of its hierarchy, by files that only it has, or lacks."""
    if version == 1:
        return any((top / name).exists() for name in ("release_agent", "cgroup.sane_behavior"))
    return not (top / "cgroup.type").exists()


def _offers(top: Path, name: str) -> bool:
    """Return whether a group of version 2 has a controller; true where it does not say."""
    with suppress(OSError):
        return name in (top / "cgroup.controllers").read_text().split()
    return True


def _is_first_namespace(proc: Path) -> bool:
    with suppress(OSError):
        return (proc / "self/ns/cgroup").stat().st_ino == _FIRST_NAMESPACE
    return False


def mounts_of(proc: Path) -> list[tuple[str, str, str, set[str]]]:
    """Return `(mount point, mounted group, file system type, super options)` of every cgroup mount."""
    found = []
    for line in lines_of(read_kernel_text(proc / "self/mountinfo")):
        left, _, right = line.partition(" - ")
        kind, _, options = [*right.split(" "), "", ""][:3]
        if kind in {"cgroup", "cgroup2"}:
            point, group = (_unescaped(left.split(" ")[at]) for at in (4, 3))
            found.append((point, group, kind, set(options.split(","))))
    return found


def _unescaped(path: str) -> str:
    r"""Return a path of mountinfo: blank, tab, newline and backslash stand there as `\\040` (seq_path)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def paths_of(proc: Path, process: str = "self") -> dict[str, str]:
    """Return a process's path by controller (`memory`), and by the empty name for version 2."""
    paths: dict[str, str] = {}
    for line in lines_of(read_kernel_text(proc / process / "cgroup")):
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths
