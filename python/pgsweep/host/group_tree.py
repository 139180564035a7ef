"""Where the cgroups of a process are, as far as they can be seen from here."""

from __future__ import annotations

import re
from pathlib import Path

from pgsweep.host.procfile import lines_of, read_kernel_text


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


def group_of(pid: int, name: str, proc: Path) -> tuple[Path, Path, int] | None:
    """Return the group of a process, the topmost mounted one, and the version; by the controller's name."""
    try:
        mounts, paths = mounts_of(proc), paths_of(proc, str(pid))
    except OSError:
        return None
    for version, controller in ((1, name), (2, "")):
        for point, root, kind, options in mounts:
            wanted = kind == "cgroup" and name in options if controller else kind == "cgroup2"
            if wanted and controller in paths:
                below = Path(paths[controller])
                folder = Path(point) / below.relative_to(root) if below.is_relative_to(root) else None
                if folder is not None and ".." not in folder.parts and folder.is_dir():
                    return folder, Path(point), version
    return None


def upwards(folder: Path, top: Path) -> list[Path]:
    """Return a group and those above it, up to the mounted one."""
    above = [folder, *folder.parents]
    return above[: above.index(top) + 1] if top in above else above
