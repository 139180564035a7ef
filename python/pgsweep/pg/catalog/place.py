"""Where a server runs, asked once: by its process and this host (pgsweep.host.place), and by its session."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from pgsweep.host.place import look
from pgsweep.pg.catalog.manager import find_manager, read_sources
from pgsweep.pg.catalog.provider import Provider, read_provider
from pgsweep.records.place import Place, PlaceMemory


def place_at(provider: Provider) -> Place:
    """Return the place of a server of a hosted service: what is seen here would be of another host."""
    memory = PlaceMemory(why=f"its host is one of {provider.name}")
    return Place(
        kind="elsewhere",
        because="it has settings that only its servers have",
        memory=memory,
        provider=provider.name,
    )


def read_place(connection: psycopg.Connection[Any], pid: int | None) -> Place:
    """Return where the server of a session runs, and who keeps its settings.

    Args:
        connection: a session on it.
        pid: its postmaster, where that is seen here.
    """
    place, provider = look(pid), read_provider(connection)
    if provider is not None:
        return place_at(provider)
    manager = find_manager(read_sources(connection), pid)
    if manager is None:
        return place
    return msgspec.structs.replace(place, manager=manager.name, manager_because=manager.because)
