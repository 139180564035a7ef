"""Which part of a relation of a private server each cache holds."""

from __future__ import annotations

from dataclasses import dataclass

from pgsweep.cache.inspect import look
from pgsweep.pg.private.cluster import Cluster
from pgsweep.residency.access import opened


@dataclass(frozen=True, slots=True)
class Held:
    """Parts of a relation.

    Attributes:
        pool: in shared_buffers.
        page_cache: None where it cannot be seen.
        both: in both of them.
    """

    pool: float
    page_cache: float | None = None
    both: float = 0.0


def held(cluster: Cluster, database: str, relation: str) -> Held:
    """Return where a relation lies; the names of one database are read for it, some 200 pages of catalogs."""
    with opened(cluster.conninfo(database)) as access:
        rows = look(access, every_database=False).relations
    for row in rows:
        if row.relation == relation and row.size_bytes:
            pool = row.shared_buffers_bytes / row.size_bytes
            if row.page_cache_bytes is None or row.both_bytes is None:
                return Held(pool)
            return Held(pool, row.page_cache_bytes / row.size_bytes, row.both_bytes / row.size_bytes)
    return Held(0.0)
