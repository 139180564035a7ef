"""What a recording on the server's host keeps of its memory: facts in `meta.json`, and counters.

Read at the beginning (facts; until the end the pace of the processors, and in a trace copies) and at both
ends (counters, and what the page cache holds of the data), from /proc, from the server's cgroups and by one
cachestat(2) or mincore(2) for each segment file: some microseconds for each process and file; and by at most
200 reads of blocks that are not in the page cache, for what such a read takes of a processor; a trace also
times reads that are in flight at once (disk_latency.py). docs/concepts/evidence.md lists
the names.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from pgsweep._native import page_cache
from pgsweep.errors import MissingAbility
from pgsweep.evidence.disk_latency import latency_facts
from pgsweep.evidence.processor_times import copy_facts, program
from pgsweep.host.datafiles import DataFiles, find_data_files
from pgsweep.host.limits import read_bytes_of_group
from pgsweep.host.page_cache_rules import rules_of_data
from pgsweep.host.pages import PAGE_BYTES
from pgsweep.host.place import file_system_of, look_at_memory
from pgsweep.host.processor_time import (
    cold_read_seconds,
    copy_seconds,
    host_seconds,
    server_processors,
    server_seconds,
)
from pgsweep.host.server_memory import disk_read_bytes, neighbours, read_server_memory, refaults
from pgsweep.pg.catalog.counters import Counter

_MOST_NEIGHBOURS: Final = 20
_OF_ALL_MEMORY: Final = ("memory_bytes", "memory_from", "memory_other_bytes")
_REFUSED: Final = (1, 13)
"""EPERM and EACCES."""


def memory_facts(
    postmaster_pid: int, version_num: int, block_bytes: int, *, timed: bool = True, depths: bool = False
) -> dict[str, str]:
    """Return the facts about the memory of the server's host; what cannot be read is missing.

    Args:
        postmaster_pid: of the server.
        version_num: of the server.
        block_bytes: size of its blocks.
        timed: time reads too, as `record --dry-run` says (plan.py).
        depths: and reads that are in flight at once.
    """
    found: dict[str, str] = {}
    limits = look_at_memory(postmaster_pid)
    if limits.limited == "unknown":
        # The host's memory is not the server's then: nothing is computed from it.
        found["memory_unknown"] = limits.why or "its limit is not known"
    if file_system_of(postmaster_pid) == "zfs":
        found["memory_unknown"] = "its files lie on ZFS, whose cache (ARC) is not the page cache of Linux"
    with suppress(OSError, ValueError):
        memory = read_server_memory(postmaster_pid)
        found |= {
            "memory_bytes": str(memory.memory_bytes),
            "memory_from": "cgroup" if memory.from_cgroup else "host",
            "memory_other_bytes": str(memory.other_bytes),
            "memory_shared_bytes": str(memory.shared_memory_bytes),
            "memory_page_cache_bytes": str(memory.page_cache_bytes),
            "memory_page_tables_bytes": str(memory.page_tables_bytes),
            "memory_page_tables_saved_bytes": str(memory.page_tables_saved_bytes),
            **({} if memory.private_bytes is None else {"memory_private_bytes": str(memory.private_bytes)}),
            "server_processes": str(memory.processes),
            "huge_pages": "on" if memory.huge_pages else "off",
            **({} if memory.huge_pages_counted else {"huge_pages_counted": "off"}),
        }
        if "memory_unknown" in found:
            found = {name: value for name, value in found.items() if name not in _OF_ALL_MEMORY}
        others = neighbours(postmaster_pid)[:_MOST_NEIGHBOURS]
        if others:
            found["other_servers"] = msgspec.json.encode(others).decode()
    with suppress(OSError):
        found["server_processors"] = f"{server_processors(postmaster_pid):.2f}"
    with suppress(OSError):
        rules = rules_of_data(postmaster_pid)
        found |= {
            "mglru": "on" if rules.mglru else "off",
            **({"pages_out_idle": "on"} if rules.pages_out_idle else {}),
            "readahead_bytes": str(rules.readahead_bytes),
            "folio_order": str(rules.folio_order),
            "page_bytes": str(PAGE_BYTES),
        }
    files = _data_files(postmaster_pid, version_num)
    found |= {f"data_{name}_bytes": value for name, value in _cached(files, block_bytes).items()}
    found |= _counted(postmaster_pid)
    if not timed:
        return found
    cold = None if files is None else cold_read_seconds(files.paths)
    if cold is not None:
        found["cold_read_nanoseconds"] = str(round(cold * 1e9))
    if depths:
        found |= latency_facts(postmaster_pid, [] if files is None else files.paths)
    return found | copy_facts(copy_seconds(program(postmaster_pid)))


def facts_at_end(postmaster_pid: int, version_num: int, block_bytes: int) -> dict[str, str]:
    """Return what the page cache holds of the data at the end of a recording, as facts; none if not known."""
    seen = _cached(_data_files(postmaster_pid, version_num), block_bytes)
    return {f"data_{name}_end_bytes": value for name, value in seen.items()}


def memory_counters(postmaster_pid: int) -> list[Counter]:
    """Return what the server has read from disk, which pages came back, and processor times, so far."""
    counters = {name: float(value) for name, value in refaults(postmaster_pid).items()}
    counts = {
        "disk_read_bytes": disk_read_bytes(postmaster_pid),
        "cgroup_read_bytes": read_bytes_of_group(postmaster_pid),
        "server_cpu_seconds": server_seconds(postmaster_pid),
        "host_cpu_seconds": host_seconds(),
    }
    counters |= {name: float(value) for name, value in counts.items() if value is not None}
    return [Counter("host", "", name, value) for name, value in counters.items()]


def _counted(postmaster_pid: int) -> dict[str, str]:
    """Return which counters of disk reads there are, and what may not be read, as facts."""
    of_processes = disk_read_bytes(postmaster_pid) is not None
    of_group = read_bytes_of_group(postmaster_pid) is not None
    counted = [*(["processes"] if of_processes else []), *(["cgroup"] if of_group else [])]
    missing = []
    if not of_processes:
        missing.append(f"what its processes read from disk: /proc/{postmaster_pid}/io may not be read")
    if not refaults(postmaster_pid):
        missing.append("which pages came back to the page cache: the kernel does not count them here")
    return {
        "disk_reads_from": " and ".join(counted) or "nothing",
        **({"not_counted": "; ".join(missing)} if missing else {}),
    }


def _data_files(postmaster_pid: int, version_num: int) -> DataFiles | None:
    with suppress(OSError, MissingAbility):
        return find_data_files(postmaster_pid, version_num)
    return None


def _cached(files: DataFiles | None, block_bytes: int) -> dict[str, str]:
    """Return how much of files is in the page cache, and where the kernel counts it (cachestat) more of it.

    The names are `cached`, and `dirty`, `writeback` and `recently_evicted`: pages that were evicted so
    recently that the kernel would take them for active if they were read again.
    """
    if files is None or files.unreadable:
        return {}
    seen = page_cache(files.paths, maps=False, block_bytes=block_bytes)
    if any((seen["error"] == refused).any() for refused in _REFUSED):
        return {}
    found = {"cached": str(int(seen["cached_bytes"].sum()))}
    opened = seen["error"] == 0
    more = {
        "dirty": seen["dirty_bytes"],
        "writeback": seen["writeback_bytes"],
        "recently_evicted": seen["evicted_bytes"],
    }
    return found | {
        name: str(int(counts[opened].sum())) for name, counts in more.items() if (counts[opened] >= 0).all()
    }
