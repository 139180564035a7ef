"""What a recording on the server's host keeps of its memory: facts in `meta.json`, and counters.

Read at the beginning (facts; a trace times copies until its end) and at both ends (counters), from /proc
and by one cachestat(2) or mincore(2)
for each segment file: some microseconds for each process and file; and by at most 200 reads of blocks
that are not in the page cache, for what such a read takes of a processor. docs/concepts/evidence.md lists the
names.
"""

from __future__ import annotations

from contextlib import suppress

from pgsweep._native import page_cache
from pgsweep.errors import MissingAbility
from pgsweep.host.datafiles import find_data_files
from pgsweep.host.page_cache_rules import rules_of_data
from pgsweep.host.processor_time import (
    cold_read_seconds,
    copy_seconds,
    host_seconds,
    server_seconds,
)
from pgsweep.host.procfile import PROC
from pgsweep.host.server_memory import disk_read_bytes, read_server_memory, refaults
from pgsweep.pg.counters import Counter


def memory_facts(postmaster_pid: int, version_num: int, block_bytes: int) -> dict[str, str]:
    """Return the facts about the memory of the server's host; what cannot be read is missing."""
    found: dict[str, str] = {}
    with suppress(OSError, ValueError):
        memory = read_server_memory(postmaster_pid)
        found |= {
            "memory_bytes": str(memory.memory_bytes),
            "memory_from": "cgroup" if memory.from_cgroup else "host",
            "memory_other_bytes": str(memory.other_bytes),
            "memory_shared_bytes": str(memory.shared_memory_bytes),
            "memory_page_cache_bytes": str(memory.page_cache_bytes),
            "memory_page_tables_bytes": str(memory.page_tables_bytes),
            **({} if memory.private_bytes is None else {"memory_private_bytes": str(memory.private_bytes)}),
            "server_processes": str(memory.processes),
            "huge_pages": "on" if memory.huge_pages else "off",
        }
    with suppress(OSError):
        rules = rules_of_data(postmaster_pid)
        found |= {
            "mglru": "on" if rules.mglru else "off",
            **({"pages_out_idle": "on"} if rules.pages_out_idle else {}),
            "readahead_bytes": str(rules.readahead_bytes),
            "folio_order": str(rules.folio_order),
        }
    with suppress(OSError, MissingAbility):
        files = find_data_files(postmaster_pid, version_num)
        seen = page_cache(files.paths, maps=False, block_bytes=block_bytes)
        if not files.unreadable and not (seen["error"] == 1).any() and not (seen["error"] == 13).any():
            found["data_cached_bytes"] = str(int(seen["cached_bytes"].sum()))
        cold = cold_read_seconds(files.paths)
        if cold is not None:
            found["cold_read_nanoseconds"] = str(round(cold * 1e9))
    return found | copy_facts(copy_seconds(PROC / str(postmaster_pid) / "exe"))


def copy_facts(seconds: float | None) -> dict[str, str]:
    """Return what a read from the page cache takes, as a fact; none where it is not known."""
    return {} if seconds is None else {"copy_nanoseconds": str(round(seconds * 1e9))}


def memory_counters(postmaster_pid: int) -> list[Counter]:
    """Return what the server has read from disk, which pages came back, and processor times, so far."""
    counters = {name: float(value) for name, value in refaults(postmaster_pid).items()}
    read = disk_read_bytes(postmaster_pid)
    if read is not None:
        counters["disk_read_bytes"] = float(read)
    times = {"server_cpu_seconds": server_seconds(postmaster_pid), "host_cpu_seconds": host_seconds()}
    counters |= {name: value for name, value in times.items() if value is not None}
    return [Counter("host", "", name, value) for name, value in counters.items()]
