"""Memory cgroups, versions 1 and 2: they limit the page cache of a private server.

A memory cgroup counts everything its processes touch first: private memory, shared memory and page cache; at
the limit the kernel drops the group's own page cache. So the limit is a small model of a machine with that
much RAM.

Version 1 (`memory.limit_in_bytes`): the group is made below our own. Version 2 (`memory.max`): a group that
holds processes may not hand controllers to children, so the group is made below the nearest ancestor that
hands out `memory` and that we may write. See the kernel's Documentation/admin-guide/cgroup-v2.rst, "No
Internal Process Constraint". Needs root or a delegated subtree.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pgsweep.errors import MissingAbility
from pgsweep.host.group_tree import mounts_of, paths_of
from pgsweep.host.limits import cached_in

_NAME_PREFIX = "pgsweep-"


class MemoryCgroup(NamedTuple):
    """A memory cgroup of ours.

    Attributes:
        path: its folder.
        version: 1 or 2.
    """

    path: Path
    version: int

    @property
    def procs_file(self) -> Path:
        """Return the file into which a process writes 0 to join."""
        return self.path / "cgroup.procs"

    def make(self, limit_bytes: int | None = None) -> None:
        """Make the planned group.

        Args:
            limit_bytes: see `set_limit`.

        Raises:
            MissingAbility: the kernel refuses.
        """
        try:
            self.path.mkdir()
        except OSError as error:
            raise MissingAbility(
                f"cannot make the memory cgroup {self.path}",
                cause=str(error),
                hint="run as root, or without a limit",
            ) from error
        self.set_limit(limit_bytes)

    def set_limit(self, limit_bytes: int | None) -> None:
        """Limit the memory of all processes in the group together; nothing lifts the limit.

        Raises:
            MissingAbility: the kernel refuses the limit (below what the group cannot give back).
        """
        if self.version == 1:
            name, text = "memory.limit_in_bytes", "-1" if limit_bytes is None else str(limit_bytes)
        else:
            name, text = "memory.max", "max" if limit_bytes is None else str(limit_bytes)
        try:
            (self.path / name).write_text(text)
        except OSError as error:
            raise MissingAbility(
                f"the kernel refuses a memory limit of {limit_bytes} bytes for {self.path}",
                cause=str(error),
                hint="choose a larger limit, or run without one",
            ) from error

    def usage_bytes(self) -> int:
        """Return the memory that the group holds now, page cache included."""
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        return int((self.path / name).read_text())

    def page_cache_bytes(self) -> int:
        """Return the page cache counted to the group; like the kernel's figure it includes shared memory."""
        return cached_in(self.path)[0]

    def processes(self) -> list[int]:
        """Return the ids of the processes in the group."""
        with suppress(OSError):
            return [int(line) for line in self.procs_file.read_text().split()]
        return []

    def remove(self, *, patience_seconds: float = 5.0) -> None:
        """Remove the group, which must have no processes; a group already gone is not an error.

        The kernel reports EBUSY for some milliseconds after the last process has ended, so it is tried again.
        """
        deadline = time.monotonic() + patience_seconds
        while self.path.exists():
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def find_parent(proc: Path = Path("/proc")) -> tuple[Path, int] | None:
    """Return the folder below which a memory cgroup can be made and its version, or nothing."""
    try:
        mounts, own = mounts_of(proc), paths_of(proc)
    except OSError:
        return None
    for point, _, kind, options in mounts:
        if kind == "cgroup" and "memory" in options:
            # Inside a container our path may lie outside what is mounted: then the mount's root is our own
            # group.
            below = Path(point) / own.get("memory", "/").lstrip("/")
            parent = below if below.is_dir() else Path(point)
            return (parent, 1) if os.access(parent, os.W_OK) else None
    for point, _, kind, _ in mounts:
        if kind == "cgroup2":
            top = Path(point)
            folder = top / own.get("", "/").lstrip("/")
            while folder == top or top in folder.parents:
                with suppress(OSError):
                    handed_out = (folder / "cgroup.subtree_control").read_text().split()
                    if "memory" in handed_out and os.access(folder, os.W_OK):
                        return folder, 2
                folder = folder.parent
    return None


def plan() -> MemoryCgroup:
    """Choose where a memory cgroup with a fresh name can be made, without making it yet.

    So that its path can be written down before it exists: then a run killed in between leaves nothing
    unknown.

    Raises:
        MissingAbility: memory cgroups are not mounted, or not ours to make.
    """
    parent = find_parent()
    if parent is None:
        raise MissingAbility(
            "cannot make a memory cgroup, so the page cache cannot be limited",
            cause="no memory cgroup is mounted that this user may write to",
            hint="run as root, or under `systemd-run --user --scope -p Delegate=yes`",
        )
    folder, version = parent
    return MemoryCgroup(folder / f"{_NAME_PREFIX}{os.getpid()}-{os.urandom(4).hex()}", version)


def reopen(path: Path) -> MemoryCgroup | None:
    """Return the group that an earlier run made at a path, or None if it is gone or not one of ours."""
    if not path.name.startswith(_NAME_PREFIX) or not path.is_dir():
        return None
    return MemoryCgroup(path, 1 if (path / "memory.limit_in_bytes").exists() else 2)
