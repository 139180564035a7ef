"""What six statements and an INSERT leave in each cache, each after a restart with both caches empty."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pgsweep.cache.footprint import footprint
from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.scaled import Protocol, Scaled, Step, kilobytes
from pgsweep.records.footprint import FootprintResult
from pgsweep.testbed.cold import DATABASE, empty_caches, private_server
from pgsweep.testbed.steps import run_sql
from pgsweep.units import BLOCK_BYTES

_VISITS: Final = """
CREATE TABLE visits (id int PRIMARY KEY, name text, grade int, code int);
INSERT INTO visits
SELECT g, 'name ' || hashint4(g) % {names} || repeat('.', 26), g % 10, g / 6
FROM generate_series(1, {rows}) AS g;
CREATE INDEX visits_name ON visits (name);
CREATE INDEX visits_code ON visits (code);
CREATE TABLE entries (id int PRIMARY KEY, customer int, at timestamptz);
CREATE INDEX entries_customer ON entries (customer);
VACUUM ANALYZE;
"""

_INSERT: Final = (
    "INSERT INTO entries SELECT g, hashint4(g) % 10000, now() FROM generate_series(1, {rows}) AS g"
)
_INSERT_JOB: Final = "rows inserted"
_TABLES: Final = ("visits", "entries")


def _visits_statements(rows: int) -> dict[str, str]:
    """Return the article's six statements, for a table of `rows` rows."""
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
                inserts = job == _INSERT_JOB
                if inserts:
                    run_sql(cluster, DATABASE, "TRUNCATE entries", "CHECKPOINT")
                found = footprint(
                    cluster.conninfo(DATABASE),
                    _INSERT.format(rows=model.number("inserted")) if inserts else statements[job],
                    runs=1 if inserts else 2,
                    allow_writes=inserts,
                    empty_caches=lambda: empty_caches(cluster),
                )
                values, raw = _of(found)
                return Done(
                    {f"{job}: {name}": value for name, value in values.items()},
                    {f"{job}: {name}": value for name, value in raw.items()},
                    measure_seconds=time.monotonic() - begin,
                )

            yield step


def _of(found: FootprintResult) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return what the first run brought in: in all, by relation, and block by block."""
    own = [row for row in found.relations if row.schema == "public"]
    values: dict[str, float] = {
        "into shared_buffers": sum(row.runs[0].shared_buffers_in_bytes for row in own),
        "size": sum(row.size_bytes or 0 for row in own),
        "blocks read": found.runs[0].shared_read_blocks,
        "cold": found.runs[0].execution_seconds,
        "again": found.runs[-1].execution_seconds,
    }
    raw: dict[str, list[float]] = {}
    for part, rows in (
        ("table", [row for row in own if row.relation in _TABLES]),
        ("indexes", [row for row in own if row.relation not in _TABLES]),
    ):
        values[f"{part} into shared_buffers"] = sum(row.runs[0].shared_buffers_in_bytes for row in rows)
        if found.sees_page_cache:
            values[f"{part} into the page cache"] = sum(row.runs[0].page_cache_in_bytes or 0 for row in rows)
        for row in rows:
            change = row.runs[0]
            raw[f"{row.relation} into shared_buffers"] = _flat(change.shared_buffers_in_blocks)
            raw[f"{row.relation} into the page cache"] = _flat(change.page_cache_in_blocks or [])
    if found.sees_page_cache:
        into_bytes = sum(row.runs[0].page_cache_in_bytes or 0 for row in own)
        values["into the page cache"] = into_bytes
        values["blocks read ahead"] = into_bytes / BLOCK_BYTES - found.runs[0].shared_read_blocks
    return values, raw


def _flat(stretches: Sequence[tuple[int, int]]) -> list[float]:
    """Return the first block of each stretch and how many they are, one after the other."""
    return [float(number) for stretch in stretches for number in stretch]


PROTOCOL = Protocol(_settings, _opened)
