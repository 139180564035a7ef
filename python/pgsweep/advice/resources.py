"""What a container, a pod or an instance is given for the settings advised: memory, huge pages, /dev/shm.

Kubernetes counts huge pages apart from memory, and a request of them must equal its limit ("Manage
HugePages"). A memory cgroup counts them only where it is mounted with `memory_hugetlb_accounting`.
"""

from __future__ import annotations

from typing import Final

from pgsweep.advice.huge_pages import requests_pages
from pgsweep.advice.situation import MB, Situation
from pgsweep.host.perils import parallel_hash_bytes, parallel_vacuum_bytes, set_aside_bytes
from pgsweep.records.advice import AdvisedSetting, Resources
from pgsweep.records.place import Place
from pgsweep.units import format_bytes, format_count

_LEAST_SHM_BYTES: Final = 64 * MB
"""What Docker and Kubernetes give where nothing is said."""

_HASH_MULTIPLIER: Final = "2"
"""hash_mem_multiplier from PostgreSQL 15 on; evidence does not keep it."""


def resources_of(situation: Situation, settings: list[AdvisedSetting], place: Place | None) -> Resources:
    """Return what the server's container, pod or instance is given.

    Args:
        situation: with huge pages for the size that is advised.
        settings: the advice.
        place: of the server; None where that is not known.
    """
    pages, why_pages = _huge_pages(situation, settings)
    size = None if situation.huge_pages is None else situation.huge_pages.huge_page_size_bytes
    apart = 0 if place is not None and place.memory.counts_huge_pages else (pages or 0) * (size or 0)
    memory, why_memory = _memory(situation, apart)
    shm, why_shm = _dev_shm(situation)
    return Resources(
        memory_bytes=memory,
        memory_why=why_memory,
        huge_page_size_bytes=size,
        huge_pages=pages,
        huge_pages_why=why_pages,
        dev_shm_bytes=shm,
        dev_shm_why=why_shm,
    )


def _huge_pages(situation: Situation, settings: list[AdvisedSetting]) -> tuple[int | None, str]:
    found = situation.huge_pages
    if found is None or found.huge_pages_needed is None:
        return None, "how many huge pages the server takes is counted on its host: name the server as well"
    setting = next((one for one in settings if one.name == "huge_pages"), None)
    wanted = found.status == "on" or any(
        one.action == "set" and one.where in ("kernel", "cgroup") for one in settings
    )
    if not (wanted or requests_pages(situation, found)) or found.shared_memory_type != "mmap":
        return None, "none are advised" if setting is None else setting.reason
    size = format_bytes(found.huge_page_size_bytes)
    return found.huge_pages_needed, (
        f"{format_count(found.huge_pages_needed)} pages of {size}, as many as the server asks for at its "
        "start (measured): request and limit must be equal, and the nodes need as many set aside"
    )


def _memory(situation: Situation, apart_bytes: int) -> tuple[int | None, str]:
    facts, memory = situation.facts, situation.memory_bytes
    if memory is None:
        return None, "how much memory the server needs is not known: name it with --ram SIZE"
    if facts is not None and not facts.assumed and facts.huge_pages and not facts.huge_pages_counted:
        memory += facts.shared_bytes
    left = memory - apart_bytes
    if left <= 0:
        return None, "the huge pages take more than the memory that the advice is for"
    text = f"pool, page cache and sessions share {format_bytes(memory)}: the advice rests on that"
    if apart_bytes:
        text += f"; {format_bytes(apart_bytes)} of it are huge pages, which count apart"
    return left, text


def _dev_shm(situation: Situation) -> tuple[int | None, str]:
    settings = {"hash_mem_multiplier": _HASH_MULTIPLIER, **situation.settings}
    if settings.get("dynamic_shared_memory_type", "posix") != "posix":
        return None, "dynamic shared memory is not there"
    join, vacuum = parallel_hash_bytes(settings), parallel_vacuum_bytes(settings)
    if not join and not vacuum:
        return _LEAST_SHM_BYTES, "no query has parallel workers, as far as the settings say"
    workers = max(1, situation.number("max_parallel_workers_per_gather") or 1)
    joins = max(1, (situation.number("max_worker_processes") or workers) // workers)
    need = max(_LEAST_SHM_BYTES, -(-(join * joins + vacuum - set_aside_bytes(settings)) // MB) * MB)
    beside = f", and a VACUUM with parallel workers {format_bytes(vacuum)}" if vacuum else ""
    return need, (
        f"{format_count(joins)} parallel hash joins at once may take {format_bytes(join)} each (assumed: "
        f"work_mem x hash_mem_multiplier for each worker and the leader){beside}; what is not used takes no "
        "memory"
    )
