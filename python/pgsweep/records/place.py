"""Where a server runs, what limits it there, and who keeps its settings."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["host", "systemd", "container", "pod", "lxc", "wsl", "elsewhere"]
Limited = Literal["no", "yes", "unknown"]


class PlaceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that a server may use.

    Attributes:
        host_bytes: memory of the host, as /proc/meminfo says it; null where the server runs elsewhere.
        from_lxcfs: lxcfs says it: it is the container's, not the host's.
        limited: whether memory cgroups limit it. `unknown` where a limit may be hidden: then nothing is
            computed from the host's memory.
        why: why the limit is not known, or which groups are not seen; null where all are.
        group: the memory cgroup that leaves least; null where none limits it.
        limit_bytes: its limit.
        used_bytes: what it holds now, page cache included.
        available_bytes: the limit, less what the group holds and cannot drop.
        high_bytes: a memory.high that leaves less than that: above it processes are slowed down.
        high_available_bytes: what that leaves.
        counts_huge_pages: huge pages take part of the limit.
        swap_bytes: how much its cgroups let it swap before processes are killed.
        killed_together: where memory ends the kernel kills all processes of a cgroup of the server's, not one
            (memory.oom.group).
    """

    host_bytes: int | None = None
    from_lxcfs: bool = False
    limited: Limited = "unknown"
    why: str | None = None
    group: str | None = None
    limit_bytes: int | None = None
    used_bytes: int | None = None
    available_bytes: int | None = None
    high_bytes: int | None = None
    high_available_bytes: int | None = None
    counts_huge_pages: bool = False
    swap_bytes: int = 0
    killed_together: bool = False

    @property
    def capacity_bytes(self) -> int | None:
        """The memory that there is for the server and its neighbours; None where that is not known."""
        if self.limited == "unknown" or self.host_bytes is None:
            return None
        return min(self.host_bytes, self.host_bytes if self.limit_bytes is None else self.limit_bytes)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server runs.

    Attributes:
        kind: `elsewhere` where its process is not seen from here.
        because: what shows that.
        memory: what it may use.
        unit: its systemd unit; null where it has none.
        file_system: the type of that on which its data directory lies; null where that is not seen.
        dev_shm_bytes: size of its /dev/shm; null where that is not seen.
        dev_shm_free_bytes: what of it is free now.
        locked_memory_bytes: how much memory its processes may lock (RLIMIT_MEMLOCK); null where there is no
            limit, or it is not seen.
        address_space_bytes: how much each of its processes may map, shared memory included (RLIMIT_AS); null
            as above.
        private_memory_bytes: how much memory of its own each may have (RLIMIT_DATA); null as above.
        shared_memory_limit_bytes: with more shared memory than this the server does not start again; null
            where nothing is seen that limits it.
        shared_memory_limit_name: what limits it: `RLIMIT_AS`, `kernel.shmmax` or `shmall` (where
            it is of System V), `vm.overcommit_memory` (of ordinary pages, where that is 2).
        process_limit: how many processes a cgroup lets it and its neighbours have, or how many its user's
            other processes leave to it, whichever leaves less; null where there is no such limit, or it is
            not seen.
        process_limit_name: `pids.max`, or `RLIMIT_NPROC` of its user.
        process_room: how many more it may have now.
        sysctl_writable: whether /proc/sys can be written here.
        provider: the hosted service that it belongs to; null for none that is known.
        manager: what keeps its settings and overwrites those that others set; null for none that is known.
        manager_because: what shows that.
    """

    kind: Kind
    because: str = ""
    memory: PlaceMemory = PlaceMemory()
    unit: str | None = None
    file_system: str | None = None
    dev_shm_bytes: int | None = None
    dev_shm_free_bytes: int | None = None
    locked_memory_bytes: int | None = None
    address_space_bytes: int | None = None
    private_memory_bytes: int | None = None
    shared_memory_limit_bytes: int | None = None
    shared_memory_limit_name: str = ""
    process_limit: int | None = None
    process_limit_name: str = "pids.max"
    process_room: int | None = None
    sysctl_writable: bool = True
    provider: str | None = None
    manager: str | None = None
    manager_because: str | None = None

    @property
    def contained(self) -> bool:
        """Whether it runs in a container, so that the kernel's settings are those of others too."""
        return self.kind in {"container", "pod", "lxc"}
