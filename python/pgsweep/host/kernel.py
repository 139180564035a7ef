"""The settings of the kernel that matter to a database host, as they are. Read, never set."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pgsweep.host.place import look, runs_containers
from pgsweep.host.procfile import PROC, HostMemory, read_host_memory
from pgsweep.records.place import Place

SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """The device that holds the data directory.

    Attributes:
        name: as in /sys/block.
        read_ahead_bytes: how far the kernel reads ahead of a sequential reader.
        rotational: the device reports that it is a rotating disk.
    """

    name: str
    read_ahead_bytes: int
    rotational: bool


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What is set; None where this kernel has no such setting, or it may not be read.

    Attributes:
        sysctls: by name (`vm.swappiness`).
        transparent_huge_pages: `always`, `madvise` or `never`.
        numa_nodes: nodes that have memory.
        postmaster_oom_score_adj: of the server's first process; None where there is none here.
        child_oom_score_adj: of its children, the lowest.
        data_device: None where there is no server here, or its files lie on no block device.
        place: where the server runs, or we where there is none here.
        runs_containers: others run in containers beside it, as on a node of Kubernetes.
    """

    memory: HostMemory
    sysctls: dict[str, int]
    transparent_huge_pages: str | None
    numa_nodes: int
    postmaster_pid: int | None = None
    postmaster_oom_score_adj: int | None = None
    child_oom_score_adj: int | None = None
    data_device: BlockDevice | None = None
    place: Place | None = None
    runs_containers: bool = False

    @property
    def contained(self) -> bool:
        """Whether the kernel is that of other containers too."""
        return self.place is not None and self.place.contained


SYSCTLS = (
    "vm.dirty_background_bytes",
    "vm.dirty_background_ratio",
    "vm.dirty_bytes",
    "vm.dirty_ratio",
    "vm.dirty_expire_centisecs",
    "vm.dirty_writeback_centisecs",
    "vm.overcommit_memory",
    "vm.overcommit_ratio",
    "vm.overcommit_kbytes",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
    "kernel.numa_balancing",
)


def read_kernel(
    postmaster_pid: int | None, children: list[int], proc: Path = PROC, sys: Path = SYS
) -> KernelFacts:
    """Return the settings.

    Args:
        postmaster_pid: the server's first process, where it runs here.
        children: its children.
    """
    sysctls = {}
    for name in SYSCTLS:
        value = _number(proc / "sys" / name.replace(".", "/"))
        if value is not None:
            sysctls[name] = value
    scores = [score for pid in children if (score := _score(pid, proc)) is not None]
    return KernelFacts(
        memory=read_host_memory(proc),
        sysctls=sysctls,
        transparent_huge_pages=_chosen(sys / "kernel/mm/transparent_hugepage/enabled"),
        numa_nodes=_count_ranges(sys / "devices/system/node/has_memory"),
        postmaster_pid=postmaster_pid,
        postmaster_oom_score_adj=None if postmaster_pid is None else _score(postmaster_pid, proc),
        child_oom_score_adj=min(scores, default=None),
        place=look(os.getpid() if postmaster_pid is None else postmaster_pid, proc),
        runs_containers=runs_containers(proc),
        data_device=None if postmaster_pid is None else _data_device(proc / str(postmaster_pid) / "cwd", sys),
    )


def _score(pid: int, proc: Path) -> int | None:
    return _number(proc / str(pid) / "oom_score_adj")


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _chosen(file: Path) -> str | None:
    """Return the word in brackets: `always [madvise] never`."""
    with suppress(OSError, IndexError):
        return file.read_text().split("[")[1].split("]")[0]
    return None


def _count_ranges(file: Path) -> int:
    """Return how many numbers a list such as `0-1,4` names; 1 where there is none."""
    with suppress(OSError, ValueError):
        count = 0
        for part in file.read_text().strip().split(","):
            first, _, last = part.partition("-")
            count += int(last or first) - int(first) + 1
        return count
    return 1


def _data_device(folder: Path, sys: Path) -> BlockDevice | None:
    with suppress(OSError):
        return device_of(folder.stat().st_dev, sys)
    return None


def device_of(number: int, sys: Path = SYS) -> BlockDevice | None:
    """Return the block device of a file by its number (st_dev); for a partition the device it is part of."""
    device = (sys / f"dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    for candidate in (device, device.parent):
        read_ahead = _number(candidate / "queue/read_ahead_kb")
        if read_ahead is not None:
            rotational = _number(candidate / "queue/rotational") == 1
            return BlockDevice(candidate.name, read_ahead * 1024, rotational)
    return None
