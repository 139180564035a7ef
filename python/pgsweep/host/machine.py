"""A description of the machine in one line, for results that are compared with others."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from pathlib import Path

from pgsweep.host.procfile import read_host_memory
from pgsweep.units import format_bytes


def memory_bytes() -> int:
    """Return the machine's memory; inside of LXC what the container has, where lxcfs says it."""
    with suppress(OSError):
        if total := read_host_memory().total:
            return total
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(proc: Path = Path("/proc")) -> tuple[float, float] | None:
    """Return the seconds of all processors since the start, and those that the hypervisor gave to others.

    Args:
        proc: the proc file system to read. The first line of its `stat`: see proc_stat(5).
    """
    try:
        ticks = [int(word) for word in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    if len(ticks) < 8:
        return None
    second = os.sysconf("SC_CLK_TCK")
    return sum(ticks) / second, ticks[7] / second


def boot_clock(proc: Path = Path("/proc")) -> tuple[str, float] | None:
    """Return which boot of the kernel this is, and the seconds since it; None where the kernel is not Linux.

    Nobody sets this clock, and it goes on while the machine sleeps (clock_gettime(2), CLOCK_BOOTTIME).
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return boot, time.clock_gettime(time.CLOCK_BOOTTIME)


def process_began() -> float:
    """Return when this process was started, as `time.monotonic()`; now where the kernel is not Linux."""
    now = time.monotonic()
    try:
        # Field 22 of proc_pid_stat(5): ticks since boot.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return now
    return now - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def describe_machine() -> str:
    """Return processor, count, memory and kernel: `AMD EPYC 7B13, 2 CPUs, 23.5 GB, Linux 6.1.0`."""
    processor = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cpus = os.cpu_count() or 1
    memory = format_bytes(memory_bytes())
    return f"{processor}, {cpus} CPU{'s' if cpus > 1 else ''}, {memory}, Linux {platform.release()}"
