"""Two published tables again, by `pgsweep cache` and `pgsweep footprint`: exact bytes, relation by relation.

`residency`: pgbench's accounts and their primary key in both caches, before and after pg_prewarm, at a tenth
of the article's size (scale 50 for 500, shared_buffers 2.4 GB for 24 GB; PostgreSQL 10.4 there). `footprint`:
what six statements leave in each cache, each after a restart with empty caches, at the article's size (ten
million rows; PostgreSQL 10 there, and `free` to measure the page cache with). Bytes, not times, are compared.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.cache.footprint import footprint
from pgsweep.cache.inspect import look
from pgsweep.pg.cluster import Cluster
from pgsweep.residency.access import opened
from pgsweep.testbed.cold import DATABASE, empty_caches, private_server
from pgsweep.testbed.pgbench import DATABASE as PGBENCH
from pgsweep.testbed.pgbench import create_database

MB = 2**20
PUBLISHED_RESIDENCY: dict[str, dict[str, tuple[float | None, ...]]] = {
    # relation: MB in the pool, its share of the pool, of the relation; MB in the page cache, of the relation
    "before": {
        "pgbench_accounts": (471, 0.019, 0.073, 495, 0.077),
        "pgbench_accounts_pkey": (139, 0.006, 0.130, 274, 0.256),
    },
    "after": {
        "pgbench_accounts": (6414, 0.261, 1.0, 6414, 1.0),
        "pgbench_accounts_pkey": (1071, 0.044, 1.0, None, None),
    },
}
SETUP = """
CREATE TABLE visits (id int PRIMARY KEY, name text, grade int, code int);
INSERT INTO visits
SELECT g, 'name ' || hashint4(g) % 160000 || repeat('.', 26), g % 10, g / 6
FROM generate_series(1, 10000000) AS g;
CREATE INDEX visits_name ON visits (name);
CREATE INDEX visits_code ON visits (code);
VACUUM ANALYZE visits;
"""
STATEMENTS = {
    # the article's MB into the page cache and into shared_buffers
    "seq scan, 10 % of rows match": ("SELECT count(id) FROM visits WHERE grade = 3", 771, 2),
    "index range, 1 M rows": ("SELECT count(name) FROM visits WHERE id BETWEEN 1000000 AND 2000000", 223, 96),
    "another range, same width": (
        "SELECT count(name) FROM visits WHERE id BETWEEN 5000000 AND 6000000",
        224,
        96,
    ),
    "index equality on a text column, 62 rows": (
        "SELECT * FROM visits WHERE name = 'name 4711' || repeat('.', 26)",
        18,
        2,
    ),
    "6 rows by non-unique index": ("SELECT * FROM visits WHERE code = 123456", 14, 1),
    "6 rows by unique index (six ORs)": (
        "SELECT * FROM visits WHERE id = 1000001 OR id = 2500000 OR id = 4000000 OR id = 5500000"
        " OR id = 7000000 OR id = 9000000",
        20,
        1,
    ),
}


def residency() -> dict[str, Any]:
    """Return, before and after warming, what the article's table has."""
    found: dict[str, Any] = {}
    with Cluster.create(settings={"shared_buffers": "2457MB", "autovacuum": "off"}) as cluster:
        create_database(cluster, 50)
        cluster.create_extensions(PGBENCH, "pg_prewarm")
        empty_caches(cluster)
        with psycopg.connect(cluster.conninfo(PGBENCH), autocommit=True) as connection:
            # Some look-ups first, as the article's server had had.
            for first in range(1, 5_000_000, 1300):
                connection.execute(b"SELECT abalance FROM pgbench_accounts WHERE aid = %d" % first).fetchone()
            for moment in ("before", "after"):
                if moment == "after":
                    for relation in ("pgbench_accounts", "pgbench_accounts_pkey"):
                        connection.execute("SELECT pg_prewarm(%s)", [relation]).fetchone()
                with opened(cluster.conninfo(PGBENCH)) as access:
                    result = look(access)
                found[moment] = {
                    row.relation: {
                        "size_bytes": row.size_bytes,
                        "shared_buffers_bytes": row.shared_buffers_bytes,
                        "share_of_pool": row.shared_buffers_bytes / result.pool.size_bytes,
                        "share_of_relation": row.shared_buffers_bytes / (row.size_bytes or 1),
                        "page_cache_bytes": row.page_cache_bytes,
                        "both_bytes": row.both_bytes,
                        "published": PUBLISHED_RESIDENCY[moment][row.relation],
                    }
                    for row in result.relations
                    if row.relation in PUBLISHED_RESIDENCY[moment]
                }
                found[moment]["usage_counts"] = result.pool.usage_counts
    return found


def footprints() -> dict[str, Any]:
    """Return what each statement brings into the caches when both are cold, and again when warm."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.sql"
        setup.write_text(SETUP)
        with private_server(
            setup, settings={"shared_buffers": "256MB", "max_parallel_workers_per_gather": "0"}
        ) as cluster:
            for name, (statement, page_cache_mb, pool_mb) in STATEMENTS.items():
                result = footprint(
                    cluster.conninfo(DATABASE), statement, empty_caches=lambda: empty_caches(cluster)
                )
                own = [row for row in result.relations if row.schema == "public"]
                found[name] = {
                    "published_page_cache_mb": page_cache_mb,
                    "published_shared_buffers_mb": pool_mb,
                    "page_cache_bytes": sum(row.runs[0].page_cache_in_bytes or 0 for row in own),
                    "shared_buffers_bytes": sum(row.runs[0].shared_buffers_in_bytes for row in own),
                    "again_page_cache_bytes": sum(row.runs[1].page_cache_in_bytes or 0 for row in own),
                    "again_shared_buffers_bytes": sum(row.runs[1].shared_buffers_in_bytes for row in own),
                    "blocks_read": [run.shared_read_blocks for run in result.runs],
                    "relations": {
                        row.relation: [row.runs[0].shared_buffers_in_bytes, row.runs[0].page_cache_in_bytes]
                        for row in own
                    },
                    "plan": result.plan,
                }
            insert = (
                "INSERT INTO visits SELECT g, 'name ' || g || repeat('.', 26), 1, g"
                " FROM generate_series(10000001, 10200000) AS g"
            )
            written = footprint(cluster.conninfo(DATABASE), insert, allow_writes=True, runs=1)
            found["200,000 rows inserted"] = {
                "published_shared_buffers_mb": 18,
                "shared_buffers_bytes": sum(row.runs[0].shared_buffers_in_bytes for row in written.relations),
            }
    return found


def main() -> None:
    refuse_debug_build()
    samples = {"residency": residency(), "footprint": footprints()}
    after = samples["residency"]["after"]
    scan = samples["footprint"]["seq scan, 10 % of rows match"]
    held = sum(after[name]["both_bytes"] for name in PUBLISHED_RESIDENCY["after"])
    warmed = sum(after[name]["size_bytes"] for name in PUBLISHED_RESIDENCY["after"])
    summary = {
        "held_twice_after_warming_ratio": held / warmed,
        "scan_page_cache_mb": scan["page_cache_bytes"] / MB,
        "scan_shared_buffers_mb": scan["shared_buffers_bytes"] / MB,
    }
    keep(Path(__file__).parent, summary, samples)
    for name, row in samples["footprint"].items():
        print(
            f"{name}: page cache {row.get('page_cache_bytes', 0) / MB:.1f} MB"
            f" (published {row.get('published_page_cache_mb', '-')}), shared_buffers"
            f" {row['shared_buffers_bytes'] / MB:.2f} MB (published {row['published_shared_buffers_mb']})"
        )
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
