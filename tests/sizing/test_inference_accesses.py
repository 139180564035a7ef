"""From the rows of a trace to what the simulator takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from pgsweep.evidence.schema import TABLES
from pgsweep.sizing.traces.recorded import TraceFacts, build_trace


def table(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    types = {column: object if kind == "str" else kind for column, kind in TABLES[name].items()}
    empty = {column: "" if kind is object else 0 for column, kind in types.items()}
    return {
        column: np.array([{**empty, **row}[column] for row in rows], dtype=kind)
        for column, kind in types.items()
    }


def test_a_scan_without_a_ring_may_have_one_in_a_smaller_pool() -> None:
    relations = table(
        "relations",
        [
            {"db": 5, "rel": 1, "spc": 1663, "kind": "r", "blocks_begin": 100, "blocks_end": 100},
            {"db": 5, "rel": 2, "spc": 1663, "kind": "r", "blocks_begin": 3, "blocks_end": 3},
        ],
    )
    common = {"db": 5, "spc": 1663, "pid": 7}
    accesses = table(
        "accesses",
        [
            {**common, "rel": 1, "block": 0, "flags": 5, "scan": 9},
            {**common, "rel": 1, "block": 50, "flags": 0},
            {**common, "rel": 2, "block": 0, "flags": 5, "scan": 10},
            {**common, "rel": 3, "block": 0, "flags": 5, "scan": 11, "strategy": 0},
        ],
    )
    trace = build_trace(TraceFacts(accesses=accesses, relations=relations, database_oid=5))
    # The scan of the large table; not the lookup in it, not the tiny table, not the one that nobody knows.
    assert (trace.flags & 7).tolist() == [1, 0, 0, 0]
    assert trace.owner_access.tolist() == [0]
    assert trace.owner_blocks.tolist() == [100]
