"""What six statements leave in each cache, each after a restart with both caches empty."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pgsweep.cache.footprint import footprint
from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.scaled import Protocol, Scaled, Step, kilobytes
from pgsweep.testbed.cold import DATABASE, empty_caches, private_server

_VISITS: Final = """
CREATE TABLE visits (id int PRIMARY KEY, name text, grade int, code int);
INSERT INTO visits
SELECT g, 'name ' || hashint4(g) % {names} || repeat('.', 26), g % 10, g / 6
FROM generate_series(1, {rows}) AS g;
CREATE INDEX visits_name ON visits (name);
CREATE INDEX visits_code ON visits (code);
VACUUM ANALYZE visits;
"""


def _visits_statements(rows: int) -> dict[str, str]:
    """Return the article's six statements, for a table of so many rows."""
    first, width = rows // 10, rows // 10
    ors = " OR ".join(f"id = {max(1, int(rows * part))}" for part in (0.1, 0.25, 0.4, 0.55, 0.7, 0.9))
    half = rows // 2
    return {
        "seq scan": "SELECT count(id) FROM visits WHERE grade = 3",
        "index range": f"SELECT count(name) FROM visits WHERE id BETWEEN {first} AND {first + width}",
        "another range": f"SELECT count(name) FROM visits WHERE id BETWEEN {half} AND {half + width}",
        "text equality": "SELECT * FROM visits WHERE name = 'name 4711' || repeat('.', 26)",
        "non-unique index": f"SELECT * FROM visits WHERE code = {rows // 80}",
        "six ORs": f"SELECT * FROM visits WHERE {ors}",
    }


def _settings(model: Scaled) -> Mapping[str, str]:
    return {
        "shared_buffers": kilobytes(model.size_bytes("shared_buffers")),
        "max_parallel_workers_per_gather": "0",
    }


@contextmanager
def _opened(model: Scaled, place: Place) -> Iterator[Step]:
    rows = model.number("rows")
    statements = _visits_statements(rows)
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.sql"
        setup.write_text(_VISITS.format(rows=rows, names=max(10, rows // 62)))
        with private_server(
            setup, settings=_settings(model), bindir=place.bindir, work_dir=place.work_dir
        ) as cluster:

            def step(job: str, _seed: int) -> Done:
                begin = time.monotonic()
                found = footprint(
                    cluster.conninfo(DATABASE),
                    statements[job],
                    empty_caches=lambda: empty_caches(cluster),
                )
                own = [row for row in found.relations if row.schema == "public"]
                values = {
                    f"{job}: into shared_buffers": float(
                        sum(row.runs[0].shared_buffers_in_bytes for row in own)
                    ),
                    f"{job}: cold": found.runs[0].execution_seconds,
                    f"{job}: again": found.runs[1].execution_seconds,
                }
                if found.sees_page_cache:
                    brought = sum(row.runs[0].page_cache_in_bytes or 0 for row in own)
                    values[f"{job}: into the page cache"] = float(brought)
                return Done(values, measure_seconds=time.monotonic() - begin)

            yield step


PROTOCOL = Protocol(_settings, _opened)
