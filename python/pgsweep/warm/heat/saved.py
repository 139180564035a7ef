"""How hot relations were when a heat file was saved: one number a relation, to order whole relations by.

`warm restore` brings back the very blocks that were resident; here whole relations are read, and the file
only says which of them first: also where statistics are empty, as after a crash, pg_upgrade or on a new host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pgsweep.records.heat import HeatSource
from pgsweep.residency.names import Named, RelationFile
from pgsweep.warm.heat.check import source_of
from pgsweep.warm.heat.file import SavedHeat
from pgsweep.warm.heat.match import Name, name_of, saved_name

PAGE_CACHE_ONLY = 0.5
"""What a block counts that was in the page cache alone: less than one in the pool with usage_count 0, more
than one in neither. Assumed; it only decides among relations that the pool hardly knew."""


@dataclass(frozen=True, slots=True)
class HeatWeights:
    """The weight of each relation of a heat file: the sum over its saved blocks of usage_count + 1.

    Only main forks count: of a small table the maps are most of the blocks, and say nothing of its heat.

    Attributes:
        by_name: weights by what a relation is called.
        by_file: names by tablespace, database and relfilenode, for relations that were renamed since.
        system_identifier: of the cluster that it was saved on, where that is known.
    """

    source: HeatSource
    by_name: Mapping[Name, float]
    by_file: Mapping[RelationFile, Name]
    system_identifier: str | None

    def weight_of(self, named: Named, *, same_cluster: bool) -> float | None:
        """Return the weight of a relation; None where the file does not hold it.

        Args:
            named: the relation here.
            same_cluster: this is the cluster of the file, or a physical copy: file numbers mean the same.
        """
        weight = self.by_name.get(name_of(named))
        if weight is None and same_cluster:
            relation = named.relation
            place = (relation.tablespace_oid, relation.database_oid, relation.filenode)
            name = self.by_file.get(place)
            weight = None if name is None else self.by_name[name]
        return weight


def weigh(path: Path, heat: SavedHeat) -> HeatWeights:
    """Return the weights of the relations of a heat file.

    Args:
        path: where it was read from, for the result.
        heat: what was saved.
    """
    each = np.where(heat.pooled, heat.usage_count + 1.0, PAGE_CACHE_ONLY)
    of_part = np.bincount(heat.part, weights=each, minlength=len(heat.parts))
    by_name: dict[Name, float] = {}
    by_file: dict[RelationFile, Name] = {}
    for part, weight in zip(heat.parts, of_part.tolist(), strict=True):
        if part.fork != "main":
            continue
        name = saved_name(part)
        by_name[name] = weight
        by_file[part.tablespace_oid, part.database_oid, part.filenode] = name
    return HeatWeights(source_of(path, heat), by_name, by_file, heat.meta.system_identifier)
