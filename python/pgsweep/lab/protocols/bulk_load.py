"""Practices of loading many rows, each alone and together, and `pgsweep load` beside a plain COPY."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.scaled import Protocol, Scaled, Step, kilobytes
from pgsweep.load.compare import compare_practices
from pgsweep.load.loading import load_files
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.testbed.bulk import SERVER_SETTINGS, TABLE, TRIGGER, copy_rows, write_rows
from pgsweep.testbed.steps import run_sql

_DATABASE: Final = "postgres"
_PLAIN: Final = "COPY, the whole file"


def _settings(model: Scaled) -> Mapping[str, str]:
    return {
        "shared_buffers": kilobytes(model.size_bytes("shared_buffers")),
        "autovacuum": "off",
        "maintenance_work_mem": "256MB",
        **SERVER_SETTINGS,
    }


@contextmanager
def _opened(model: Scaled, place: Place) -> Iterator[Step]:
    rows = model.number("rows")
    with Cluster.create(place.bindir, _settings(model), work_dir=place.work_dir) as cluster:
        path = cluster.run_directory / "rows.csv"
        write_rows(cluster, path, rows)
        run_sql(cluster, _DATABASE, TABLE, TRIGGER)

        def step(job: str, _seed: int) -> Done:
            begin = time.monotonic()
            run_sql(cluster, _DATABASE, "TRUNCATE items", "CHECKPOINT")
            setup_seconds = time.monotonic() - begin
            options = LoadOptions(header=False)
            if job == "practices":
                found = compare_practices(
                    cluster.conninfo(), [str(path)], "items", options, progress=NullListener()
                )
                values = {f"{each.practice}: rows a second": each.rows_per_second for each in found.practices}
                raw = {f"{each.practice}: seconds": each.seconds for each in found.practices}
            else:
                if job == _PLAIN:
                    copy_rows(cluster, path, "items")
                else:
                    load_files(
                        cluster.conninfo(),
                        [str(path)],
                        "items",
                        options,
                        journal=cluster.run_directory / "journal",
                    )
                seconds = time.monotonic() - begin - setup_seconds
                values, raw = {f"{job}: rows a second": rows / seconds}, {}
            elapsed = time.monotonic() - begin
            return Done(values, raw, setup_seconds=setup_seconds, measure_seconds=elapsed - setup_seconds)

        yield step


PROTOCOL = Protocol(_settings, _opened)
