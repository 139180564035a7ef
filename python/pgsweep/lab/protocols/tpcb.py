"""Transactions a second against shared_buffers, both caches empty or the pool warmed before: a grid."""

from __future__ import annotations

from pgsweep.lab.grid import Grid, Task, Variant
from pgsweep.lab.protocols.scaled import Scaled, kilobytes


def tpcb_grid(model: Scaled) -> Grid:
    """Return the grid of pgbench's own workload over scaled sizes, named by the article's."""
    sizes = model.experiment.sizes["shared_buffers"]
    assert isinstance(sizes, dict)
    clients = max(2, model.number("clients"))
    transactions = int(model.experiment.parameters["transactions"])
    published = {cell.key: cell.published for cell in model.experiment.cells if cell.published is not None}
    return Grid(
        name=model.experiment.name,
        settings={"autovacuum": "off", "max_connections": str(clients + 20)},
        variants=[
            Variant({"shared_buffers": shown}, {"shared_buffers": kilobytes(model.scaled_bytes(shown))})
            for shown in sizes
        ],
        tasks=[Task("tpcb", "builtin", "tpcb-like", transactions=transactions)],
        caches=["cold", "prewarmed"],
        clients=[clients],
        scale=model.number("pgbench_scale"),
        memory_bytes=model.memory_bytes,
        published=published,
        fixed_factors=("workload", "clients"),
    )
