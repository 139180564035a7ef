"""The kernel's settings that matter to a database host: `pgsweep memory kernel`.

Each has its present value, what we would set, the reason, who says so, and how sure that is. Nothing is set.
`documented` means that PostgreSQL's or the kernel's documentation recommends it explicitly;
`experience` that it is widely advised and that the mechanism is documented, but that its worth on this host
was not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pgsweep.commands import on_server
from pgsweep.errors import ConnectionFailed, MissingAbility, NotOnHost
from pgsweep.host.kernel import KernelFacts, read_kernel
from pgsweep.host.machine import describe_machine
from pgsweep.host.postmaster import postmasters
from pgsweep.host.procfile import HostMemory
from pgsweep.host.procmem import read_family
from pgsweep.memory.processes import opened
from pgsweep.records.cache import Missing
from pgsweep.records.kernel import KernelResult, KernelSetting
from pgsweep.units import format_bytes

_VM = "kernel: Documentation/admin-guide/sysctl/vm.rst"
_PG_OVERCOMMIT = "PostgreSQL: Managing Kernel Resources, Linux Memory Overcommit"
_PG_HUGE = "PostgreSQL: huge_pages"

BACKGROUND_BYTES: Final = 512 << 20
"""Recommended dirty_background_bytes: a second of writing or less on today's SSDs."""

LARGEST_BACKGROUND_BYTES: Final = 1 << 30
"""More unwritten data than this is said to be too much."""


def examine(conninfo: str) -> KernelResult:
    """Return the settings of this host, with those of the server's process where it runs here.

    Without a connection the only server that runs here is taken, or none.

    Args:
        conninfo: as libpq understands it.

    Raises:
        UsageError: the text is not a connection string.
        MissingAbility: the server runs on another host, whose kernel this is not.
    """
    missing: list[Missing] = []
    pid: int | None = None
    version = None
    database = None
    try:
        with opened(conninfo) as server:
            pid, version = server.postmaster_pid, server.server.version
            database = server.server.database
    except ConnectionFailed as refused:
        running = postmasters()
        pid = running[0] if len(running) == 1 else None
        why = f"no connection ({refused.message})"
        if pid is not None:
            why += f"; process {pid}, the only server here, is taken"
        missing.append(Missing(what="the server", why=why, enable=refused.hint))
    except MissingAbility as absent:
        if postmasters():
            # It may be one of them that we may not look into.
            why = f"{absent.message}; if it runs elsewhere, this is not its kernel"
            missing.append(Missing(what="the server's process", why=why, enable=absent.hint))
            return _result(None, None, missing)
        raise NotOnHost(
            "the server does not run here, and this host's kernel is not its kernel",
            cause=absent.message,
            hint=f"run `{on_server('pgsweep memory kernel')}` on the server's host",
        ) from absent
    return _result(pid, version, missing, database=database)


def _result(
    pid: int | None, version: str | None, missing: list[Missing], *, database: str | None = None
) -> KernelResult:
    children = [status.pid for status in read_family(pid) if status.pid != pid] if pid is not None else []
    facts = read_kernel(pid, children)
    return KernelResult(
        machine=describe_machine(),
        memory_bytes=facts.memory.total,
        server_version=version,
        database=database,
        postmaster_pid=pid,
        settings=advise(facts),
        place=facts.place,
        missing=missing,
    )


def advise(facts: KernelFacts) -> list[KernelSetting]:
    """Return every setting with its judgement."""
    found = [
        *_dirty(facts),
        *_overcommit(facts),
        _swappiness(facts),
        _transparent(facts),
        *_numa(facts),
        _oom(facts),
        _read_ahead(facts),
    ]
    return [setting for setting in found if setting is not None]


@dataclass(frozen=True, slots=True)
class _Limit:
    """How much may lie unwritten: by the setting in bytes where it is not 0, else by its share."""

    name: str
    shown: str
    effective_bytes: int


def _limit(facts: KernelFacts, name: str) -> _Limit | None:
    absolute, ratio = facts.sysctls.get(f"{name}_bytes"), facts.sysctls.get(f"{name}_ratio")
    if absolute:
        return _Limit(f"{name}_bytes", str(absolute), absolute)
    if ratio is None:
        return None
    # "available" memory is the free and the reclaimable (mm/page-writeback.c, global_dirtyable_memory).
    base = facts.memory.available if facts.memory.available is not None else facts.memory.free
    return _Limit(f"{name}_ratio", str(ratio), base * ratio // 100)


def _dirty(facts: KernelFacts) -> list[KernelSetting | None]:
    background, limit = _limit(facts, "vm.dirty_background"), _limit(facts, "vm.dirty")
    found: list[KernelSetting | None] = []
    if background is not None:
        much = background.effective_bytes > LARGEST_BACKGROUND_BYTES
        found.append(
            KernelSetting(
                name=background.name,
                value=f"{background.shown} ({format_bytes(background.effective_bytes)} now)",
                good=not much,
                recommendation=f"vm.dirty_background_bytes = {BACKGROUND_BYTES}" if much else None,
                reason="at this amount of dirty pages the kernel begins to write them; pages that are "
                "still dirty when a checkpoint calls fsync are written while all sessions wait. The "
                "checkpointer asks the kernel to write its pages early (checkpoint_flush_after), backends do "
                "not (backend_flush_after is 0). For large hosts up to 4 GB is advised",
                source=_VM,
                certainty="experience",
                command=f"sysctl -w vm.dirty_background_bytes={BACKGROUND_BYTES}" if much else None,
            )
        )
    if limit is not None:
        much = limit.effective_bytes > 8 * LARGEST_BACKGROUND_BYTES
        below = background is not None and limit.effective_bytes <= background.effective_bytes
        wanted = 4 * BACKGROUND_BYTES
        found.append(
            KernelSetting(
                name=limit.name,
                value=f"{limit.shown} ({format_bytes(limit.effective_bytes)} now)",
                good=not much and not below,
                recommendation=f"vm.dirty_bytes = {wanted}" if much or below else None,
                reason="at this amount of dirty pages every process that writes has to wait; it must be well "
                "above the background limit",
                source=_VM,
                certainty="experience",
                command=f"sysctl -w vm.dirty_bytes={wanted}" if much or below else None,
            )
        )
    expire, writeback = (facts.sysctls.get(f"vm.dirty_{name}_centisecs") for name in ("expire", "writeback"))
    if expire is not None:
        found.append(
            KernelSetting(
                name="vm.dirty_expire_centisecs",
                value=str(expire),
                good=expire <= 6000,
                recommendation=None if expire <= 6000 else "3000",
                reason="data older than this is written in any case; the default of 30 s is well below the "
                "interval between checkpoints, so a checkpoint finds little left to write",
                source=_VM,
                certainty="experience",
                command=None if expire <= 6000 else "sysctl -w vm.dirty_expire_centisecs=3000",
            )
        )
    if writeback is not None:
        found.append(
            KernelSetting(
                name="vm.dirty_writeback_centisecs",
                value=str(writeback),
                good=writeback != 0,
                recommendation=None if writeback else "500",
                reason="how often the kernel looks for old unwritten data; 0 means never: then only the "
                "limits above make it write. Smaller values (100 is advised for large hosts) write less at a "
                "time",
                source=_VM,
                certainty="documented" if writeback == 0 else "experience",
                command=None if writeback else "sysctl -w vm.dirty_writeback_centisecs=500",
            )
        )
    return found


def _overcommit(facts: KernelFacts) -> list[KernelSetting | None]:
    """Return the judgement on overcommit; nothing where the kernel promises memory to containers.

    A kubelet sets vm.overcommit_memory to 1, and with another value it may not start
    (--protect-kernel-defaults).

    Beyond the commit limit every allocation fails, fork(2) too: a limit below what is promised already stops
    the host. So it is compared with Committed_AS before anything is recommended.
    """
    mode = facts.sysctls.get("vm.overcommit_memory")
    if mode is None or facts.contained or facts.runs_containers:
        return []
    memory = facts.memory
    ratio = facts.sysctls.get("vm.overcommit_ratio", 50)
    kbytes = facts.sysctls.get("vm.overcommit_kbytes", 0)
    # CommitLimit = (RAM - huge pages) * ratio / 100 + swap (Documentation/mm/overcommit-accounting.rst).
    base = max(1, memory.total - memory.huge_pages)
    limit = (kbytes * 1024 if kbytes else base * ratio // 100) + memory.swap_total
    strict = mode == 2
    wanted = _commit_ratio(memory, base)
    tight = memory.committed is not None and limit < memory.committed * _SPARE
    small = not kbytes and ratio < _USUAL_RATIO and memory.swap_total < base * (_USUAL_RATIO - ratio) // 100
    text = f"the commit limit {'is' if strict else 'would be'} {format_bytes(limit)}"
    text += "" if strict else " under vm.overcommit_memory = 2"
    if memory.committed is not None:
        text += f", {format_bytes(memory.committed)} are committed now"
    change = wanted is not None and (tight or small)
    why = (
        "the default, half of the memory, is too little for a host with little swap. Huge pages do not count"
    )
    if wanted is None:
        why = (
            "a limit that leaves a quarter more than that is beyond the memory: add swap, or take less memory"
            if strict
            else "as it would leave less than a quarter more than that, it is not recommended here"
        )
    name = "vm.overcommit_kbytes" if kbytes else "vm.overcommit_ratio"
    return [
        KernelSetting(
            name=name,
            value=str(kbytes or ratio),
            good=not (change or (strict and tight)),
            recommendation=f"vm.overcommit_ratio = {wanted}" if change else None,
            reason=f"{text}; {why}",
            source=_PG_OVERCOMMIT,
            certainty="experience",
            command=f"sysctl -w vm.overcommit_ratio={wanted}" if change else None,
        ),
        _overcommit_mode(mode, possible=wanted is not None),
    ]


_SPARE: Final = 1.25
"""By how much the commit limit should exceed what is committed, for what the server takes under load."""

_USUAL_RATIO: Final = 80
_LARGEST_RATIO: Final = 95


def _commit_ratio(memory: HostMemory, base: int) -> int | None:
    """Return the vm.overcommit_ratio to recommend; None where no possible one leaves room."""
    if memory.committed is None:
        return _USUAL_RATIO
    least = math.ceil((memory.committed * _SPARE - memory.swap_total) * 100 / base)
    return None if least > _LARGEST_RATIO else max(_USUAL_RATIO, least)


def _overcommit_mode(mode: int, *, possible: bool) -> KernelSetting:
    strict = mode == 2
    reason = (
        "with 2 an allocation beyond the commit limit fails, and with it a transaction; otherwise "
        "the kernel grants more memory than it has and then kills a process, and if that is one of "
        "PostgreSQL's, all sessions end and the server recovers. Only for hosts that run nothing but "
        "PostgreSQL; set the ratio first"
    )
    if not strict and not possible:
        reason = (
            "with 2 an allocation beyond the commit limit fails; what is committed now is near that limit or "
            "above it, so on this host every fork would fail, that of a new session too"
        )
    return KernelSetting(
        name="vm.overcommit_memory",
        value=str(mode),
        good=strict or not possible,
        recommendation=None if strict or not possible else "2",
        reason=reason,
        source=_PG_OVERCOMMIT,
        certainty="documented",
        # The line is pasted without the reason that stands above it.
        command=None
        if strict or not possible
        else "sysctl -w vm.overcommit_memory=2  # only where nothing but PostgreSQL runs",
    )


def _swappiness(facts: KernelFacts) -> KernelSetting | None:
    value = facts.sysctls.get("vm.swappiness")
    if value is None:
        return None
    no_swap = facts.memory.swap_total == 0
    good = no_swap or 1 <= value <= 10
    reason = "the server's private memory should not be swapped out in favour of the page cache"
    if value == 0:
        reason = "0 means no swapping until memory has nearly run out, which is when processes are killed"
    if no_swap:
        reason = "there is no swap, so it has no effect"
    return KernelSetting(
        name="vm.swappiness",
        value=str(value),
        good=good,
        recommendation=None if good else "10",
        reason=reason,
        source=_VM,
        certainty="experience",
        command=None if good else "sysctl -w vm.swappiness=10",
    )


def _transparent(facts: KernelFacts) -> KernelSetting | None:
    value = facts.transparent_huge_pages
    if value is None:
        return None
    good = value != "always"
    return KernelSetting(
        name="transparent_hugepage/enabled",
        value=value,
        good=good,
        recommendation=None if good else "madvise",
        reason="PostgreSQL's documentation discourages transparent huge pages: assembling them has cost "
        "some servers more time than it saved. They do not replace huge_pages: "
        f"see `{on_server('pgsweep hugepages')}`",
        source=_PG_HUGE,
        certainty="documented",
        command=None if good else "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _numa(facts: KernelFacts) -> list[KernelSetting | None]:
    found: list[KernelSetting | None] = []
    reclaim, balancing = facts.sysctls.get("vm.zone_reclaim_mode"), facts.sysctls.get("kernel.numa_balancing")
    nodes = facts.numa_nodes
    if reclaim is not None:
        found.append(
            KernelSetting(
                name="vm.zone_reclaim_mode",
                value=str(reclaim),
                good=reclaim == 0,
                recommendation=None if reclaim == 0 else "0",
                reason="otherwise the kernel drops page cache on one NUMA node while another has free memory",
                source=_VM,
                certainty="documented",
                command=None if reclaim == 0 else "sysctl -w vm.zone_reclaim_mode=0",
            )
        )
    if balancing is not None:
        good = nodes == 1 or balancing == 0
        found.append(
            KernelSetting(
                name="kernel.numa_balancing",
                value=str(balancing),
                good=good,
                recommendation=None if good else "0",
                reason="one NUMA node: it has no effect"
                if nodes == 1
                else f"{nodes} NUMA nodes: the kernel unmaps pages to see which node uses them; every "
                "backend uses the shared memory, so moving its pages does not help",
                source="kernel: Documentation/admin-guide/sysctl/kernel.rst",
                certainty="experience",
                command=None if good else "sysctl -w kernel.numa_balancing=0",
            )
        )
    return found


def _oom(facts: KernelFacts) -> KernelSetting | None:
    score, child = facts.postmaster_oom_score_adj, facts.child_oom_score_adj
    if score is None:
        return None
    spared, children_not = score <= -900, child is None or child > score
    good = spared and children_not
    value = str(score) if child is None or child == score else f"{score}, its children {child}"
    systemd = (
        "in the systemd unit: OOMScoreAdjust=-1000, Environment=PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj "
        "PG_OOM_ADJUST_VALUE=0"
    )
    reason = (
        "when memory runs out the kernel should kill a backend and not the postmaster, because the server "
        "stops when the postmaster is killed"
    )
    if spared and not children_not:
        reason += "; its children have the same score and would be spared too: PG_OOM_ADJUST_FILE is not set"
    return KernelSetting(
        name="oom_score_adj of the postmaster",
        value=value,
        good=good,
        recommendation=None if good else _oom_advice(facts, f"-1000, children 0; {systemd}"),
        reason=reason,
        source=_PG_OVERCOMMIT,
        certainty="documented",
        # Not by writing to /proc: without PG_OOM_ADJUST_FILE in the postmaster's environment all new
        # children would inherit the score, and nothing would be left to kill.
        command=None,
    )


def _oom_advice(facts: KernelFacts, systemd: str) -> str:
    """Return how the score is set: in a container by what starts it, since its root may not lower it."""
    kind = None if facts.place is None else facts.place.kind
    if kind == "pod":
        return "requests = limits in all containers of the pod (QoS class Guaranteed): the kubelet sets -997"
    return "docker run --oom-score-adj, or the same setting of its runtime" if facts.contained else systemd


def _read_ahead(facts: KernelFacts) -> KernelSetting | None:
    device = facts.data_device
    if device is None:
        return None
    wanted = 4 << 20 if device.rotational else 128 << 10
    good = device.read_ahead_bytes >= wanted
    kilobytes = wanted // 1024
    return KernelSetting(
        name=f"read_ahead_kb of {device.name}",
        value=str(device.read_ahead_bytes // 1024),
        good=good,
        recommendation=None if good else str(kilobytes),
        reason="how far the kernel reads ahead of a sequential scan; PostgreSQL before 17 relies on it "
        "entirely. "
        + (
            "Rotating disks gain from several megabytes"
            if device.rotational
            else "The default of 128 kB suits SSDs"
        ),
        source="kernel: Documentation/block/queue-sysfs.rst",
        certainty="experience",
        command=None if good else f"echo {kilobytes} > /sys/block/{device.name}/queue/read_ahead_kb",
    )
