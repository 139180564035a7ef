"""What the settings of a budget do not say: what the next start brings, what other sessions have."""

from __future__ import annotations

from typing import Final

from pgsweep.commands import on_server
from pgsweep.memory.processes import LocalServer
from pgsweep.pg.catalog.manager import read_sources
from pgsweep.pg.catalog.memory_settings import MemorySettings
from pgsweep.pg.catalog.next_start import read_next_start
from pgsweep.pg.session.refusals import explained
from pgsweep.units import format_bytes

_BUDGETED: Final = ("max_connections", "shared_buffers", "max_worker_processes", "huge_pages")
"""Settings that take effect at a start, and that a budget rests on."""

_NAMED: Final = 3
"""The number of roles with a work_mem of their own that are named."""


def saved_by_huge_pages(tables_bytes: int, huge_bytes: int, capacity: int) -> list[str]:
    """Return what huge pages would leave of the page tables, where they would save much of the memory.

    Those that map anything but shared memory stay: code, private memory.

    Args:
        tables_bytes, huge_bytes: of all processes, as they are and with huge pages.
        capacity: the memory there is.
    """
    if tables_bytes - huge_bytes <= capacity // 20:
        return []
    return [
        f"page tables may grow to {format_bytes(tables_bytes)}; with huge pages {format_bytes(huge_bytes)} "
        f"of them stay, which map other memory: {on_server('pgsweep hugepages')}"
    ]


def own_work_mem(settings: MemorySettings) -> list[str]:
    """Return who has a work_mem of his own."""
    return [
        f"{whose} has a work_mem of {format_bytes(size)}, the server {format_bytes(settings.work_mem)}: its "
        "connections may take more than is estimated here"
        for whose, size in settings.own_work_mem[:_NAMED]
    ]


def next_start(local: LocalServer, *, asked: bool) -> list[str]:
    """Return what the next start brings that the budget is not of.

    Args:
        local: the server.
        asked: the number of connections was given.
    """
    with explained():
        coming = read_next_start(local.connection)
    names = [
        name for name in _BUDGETED if name in coming.pending and not (asked and name == "max_connections")
    ]
    if not names:
        return []
    values = {name: coming.pending[name] for name in names}
    what = ", ".join(
        f"{name} = {value}" if value is not None else f"another {name}" for name, value in values.items()
    )
    text = f"{what} with the next restart; this budget is of today's"
    if (most := values.get("max_connections")) is not None:
        text += f": --max-connections {most}"
    return [text] + ([coming.unseen] if coming.unseen is not None and None in values.values() else [])


def of_this_session(local: LocalServer, settings: MemorySettings, *, asked: bool) -> list[str]:
    """Return which amounts are those of this session only, so that other sessions may have others.

    Args:
        local: the server.
        settings: as they are in this session.
        asked: work_mem was given.
    """
    with explained():
        sources = read_sources(local.connection, _OF_SESSIONS)
    return [
        f"{name} is {format_bytes(getattr(settings, name))} in this session, by {by}; others may have another"
        + (": --work-mem SIZE" if name == "work_mem" else "")
        for name in _OF_SESSIONS
        if (by := sources[name].of_this_session) is not None and not (asked and name == "work_mem")
    ]


_OF_SESSIONS: Final = ("work_mem", "temp_buffers", "maintenance_work_mem")
"""Settings of sessions that a budget rests on."""
