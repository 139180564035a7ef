"""One sample of both caches as arrays; it gives any relations in any order."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep.cache.top.directory import Row
from pgsweep.cache.top.page_cache import PageCacheByRelation
from pgsweep.pg.catalog.counting import Reading
from pgsweep.records.rollup import FOLDED, SYSTEM_SCHEMAS
from pgsweep.records.top import TopPageCache, TopRelation, TopSample, TopView
from pgsweep.units import format_count

SORTS: Final = ("pool", "change", "hot", "dirty", "page-cache", "twice", "name")
"""What relations can be ordered by."""


@dataclass(frozen=True, slots=True)
class CacheSample:
    """One sample of both caches, for any view; arrays are parallel to the rows."""

    head: TopSample
    rows: list[Row]
    usage_counts: NDArray[np.int64]
    dirty: NDArray[np.int64]
    pinned: NDArray[np.int64]
    change: NDArray[np.float64] | None
    files: PageCacheByRelation | None
    taken: float
    reading: Reading

    def folded(self) -> CacheSample:
        """Return the same with all system catalogs, and what serves them, as one row."""
        rows = self.rows[: len(self.usage_counts)]
        catalog = np.array([(row.table_schema or row.schema) in SYSTEM_SCHEMAS for row in rows], np.bool_)
        relations = int((self.usage_counts.sum(axis=1)[catalog] > 0).sum())
        name = f"(system catalogs: {format_count(relations)} relations)"
        row = Row("", "", name, FOLDED, name)

        def fold(values: NDArray[Any]) -> NDArray[Any]:
            mine = catalog[: len(values)]
            kept = np.where(mine if values.ndim == 1 else mine[:, None], 0, values)
            return np.concatenate([kept, values[mine].sum(axis=0, keepdims=True)])

        files = self.files
        if files is not None:
            # The row comes after those of now; `files` may lack the last of these.
            known = [padded(values, len(catalog)) for values in (files.size, files.page_cache, files.both)]
            size, page_cache, both = (fold(values) for values in known)
            files = replace(files, size=size, page_cache=page_cache, both=both)
        return replace(
            self,
            rows=[*rows, row],
            usage_counts=fold(self.usage_counts),
            dirty=fold(self.dirty),
            pinned=fold(self.pinned),
            change=None if self.change is None else fold(self.change),
            files=files,
        )

    def sample(self, view: TopView) -> TopSample:
        """Return the requested relations in the requested order, with all that is not about relations."""
        if view.fold:
            return self.folded().sample(msgspec.structs.replace(view, fold=False))
        block = self.head.block_size_bytes
        used = self.usage_counts.sum(axis=1)
        count = len(used)
        there = used > 0
        if self.change is not None:
            there |= self.change != 0
        cached = twice = np.zeros(count, dtype=np.int64)
        if self.files is not None:
            cached, twice = padded(self.files.page_cache, count), padded(self.files.both, count)
            there |= cached > 0
        chosen = np.flatnonzero(there)
        if view.filter:
            wanted = view.filter.lower()
            chosen = np.array([i for i in chosen.tolist() if wanted in self.rows[i].words], dtype=np.int64)
        weights = {
            "pool": used,
            "change": np.abs(self.change) if self.change is not None else used,
            "hot": self.usage_counts[:, 4:].sum(axis=1),
            "dirty": self.dirty,
            "page-cache": cached,
            "twice": twice,
        }
        if view.sort == "name":
            ordered = sorted(chosen.tolist(), key=lambda i: self.rows[i].words)
        else:
            keys = (chosen, -cached[chosen], -used[chosen], -weights[view.sort][chosen])
            ordered = chosen[first_rows(keys, view.limit, reverse=view.reverse)].tolist()
        if view.reverse:
            ordered.reverse()
        page_cache = self.page_cache() or self.head.page_cache
        return msgspec.structs.replace(
            self.head,
            relations=[self._relation(i, block) for i in ordered[: view.limit]],
            relations_found=len(chosen),
            page_cache=page_cache,
        )

    def page_cache(self) -> TopPageCache | None:
        """Return the page cache as of its last reading; None where there is none.

        The pool is newer: what has left it since is not in both any more.
        """
        if self.files is None:
            return None
        block = self.head.block_size_bytes
        both = padded(self.files.both, len(self.usage_counts))
        held = self.usage_counts.sum(axis=1) * block
        found = self.files.record(time.monotonic())
        return msgspec.structs.replace(found, both_bytes=int(np.minimum(both, held).sum()))

    def _relation(self, i: int, block: int) -> TopRelation:
        row, files = self.rows[i], self.files
        seen = files is not None and i < len(files.page_cache)
        held = int(self.usage_counts[i].sum()) * block
        return TopRelation(
            database=row.database,
            schema=row.schema,
            relation=row.relation,
            kind=row.kind,
            table_schema=row.table_schema,
            table=row.table,
            shared_buffers_bytes=held,
            change_bytes_per_second=None if self.change is None else float(self.change[i]) * block,
            usage_counts=self.usage_counts[i].tolist(),
            dirty_bytes=int(self.dirty[i]) * block,
            pinned_bytes=int(self.pinned[i]) * block,
            size_bytes=int(files.size[i]) if files is not None and seen else None,
            page_cache_bytes=int(files.page_cache[i]) if files is not None and seen else None,
            both_bytes=min(int(files.both[i]), held) if files is not None and seen else None,
        )


def first_rows(keys: tuple[NDArray[Any], ...], limit: int | None, *, reverse: bool) -> NDArray[np.int64]:
    """Return the order of the first rows by the last key, then the one before it.

    With `reverse` they are the last rows, in the same order, of which the caller wants the last first. Only
    the rows that may be among them are sorted: a selection takes a fraction of the time of sorting all.
    """
    heaviest = keys[-1]
    count = len(heaviest)
    if limit is None or limit <= 0 or 4 * limit >= count:
        return np.lexsort(keys) if limit != 0 else np.zeros(0, dtype=np.int64)
    place = count - limit if reverse else limit - 1
    bound = np.partition(heaviest, place)[place]
    among = np.flatnonzero(heaviest >= bound if reverse else heaviest <= bound)
    return among[np.lexsort(tuple(key[among] for key in keys))]


def padded(values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the values with zeros for the rows that came since."""
    return (
        values if len(values) == count else np.concatenate([values, np.zeros(count - len(values), np.int64)])
    )
