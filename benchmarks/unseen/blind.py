"""Workloads written after method and intervals were settled, and run once: a blind test.

They differ from all others in what they do: TOAST reads, a two-step walk over a graph, a queue whose work is
taken by index and done, partitions read by time, sequential scans of small tables.
"""

from __future__ import annotations

from pgsweep.testbed.workloads import Script, Workload

DOCUMENTS = Workload(
    name="documents",
    title="documents of 1 to 14 kB out of line, read by popularity; tags by index; a counter; a small scan",
    scripts=(
        Script(
            "\\set rank random_zipfian(1, 60000, 1.01)\n\\set d 1 + permute(:rank - 1, 60000, 11)\n"
            "SELECT length(body) + length(title) FROM documents WHERE id = :d;\n"
            "UPDATE reads SET n = n + 1 WHERE id = :d;\n",
            weight=5,
        ),
        Script(
            "\\set tag random_exponential(1, 4000, 5)\n"
            "SELECT count(*), min(d.title) FROM tags t JOIN documents d ON d.id = t.document"
            " WHERE t.tag = :tag;\n",
            weight=3,
        ),
        Script("SELECT count(*) FROM kinds WHERE label LIKE 'k1%';\n", weight=1),
    ),
    setup=(
        "CREATE TABLE documents (id int PRIMARY KEY, title text, body text)",
        "ALTER TABLE documents ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO documents SELECT i, 'title of ' || i, repeat(md5(i::text), 30 + (i * 37) % 400)"
        " FROM generate_series(1, 60000) i",
        "CREATE TABLE reads (id int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 70)",
        "INSERT INTO reads SELECT i, 0 FROM generate_series(1, 60000) i",
        "CREATE TABLE tags (tag int, document int)",
        "INSERT INTO tags SELECT 1 + (i * 31) % 4000, 1 + (i::bigint * 7907) % 60000"
        " FROM generate_series(1, 60000) i",
        "CREATE INDEX ON tags (tag)",
        "CREATE TABLE kinds AS SELECT i AS id, 'k' || i || repeat('.', 60) AS label"
        " FROM generate_series(1, 8000) i",
        "VACUUM (ANALYZE)",
    ),
    needs_pgbench_tables=False,
)

GRAPH = Workload(
    name="graph",
    title="two steps over a graph from popular vertices, vertices by a hash index, edges by range",
    scripts=(
        Script(
            "\\set rank random_zipfian(1, 400000, 1.1)\n\\set v 1 + permute(:rank - 1, 400000, 12)\n"
            "SELECT count(*) FROM edges a JOIN edges b ON b.source = a.target WHERE a.source = :v;\n",
            weight=4,
        ),
        Script(
            "\\set v random_gaussian(1, 400000, 4)\n"
            "SELECT label FROM vertices WHERE name = 'vertex ' || :v;\n",
            weight=4,
        ),
        Script(
            "\\set v random(1, 399000)\n"
            "SELECT max(weight) FROM edges WHERE source BETWEEN :v::int AND :v::int + 60;\n",
            weight=1,
        ),
    ),
    setup=(
        "CREATE TABLE vertices (id int PRIMARY KEY, name text, label text)",
        "INSERT INTO vertices SELECT i, 'vertex ' || i, repeat(md5(i::text), 4)"
        " FROM generate_series(1, 400000) i",
        "CREATE INDEX ON vertices USING hash (name)",
        "CREATE TABLE edges (source int, target int, weight int)",
        "INSERT INTO edges SELECT 1 + (i::bigint * 9973) % 400000,"
        " 1 + (hashint4(i)::bigint + 2147483648) % 400000, i % 100 FROM generate_series(1, 2400000) i",
        "CREATE INDEX ON edges (source, target)",
        "VACUUM (ANALYZE)",
    ),
    needs_pgbench_tables=False,
)

PARTITIONS = Workload(
    name="partitions",
    title="measurements in partitions by time: recent ones read more, devices by index, a queue",
    scripts=(
        Script(
            "\\set age random_exponential(1, 1900000, 9)\n"
            "SELECT avg(value) FROM measured"
            " WHERE at BETWEEN 2000000 - :age::int AND 2000000 - :age::int + 80;\n",
            weight=4,
        ),
        Script(
            "\\set rank random_zipfian(1, 5000, 1.2)\n\\set d 1 + permute(:rank - 1, 5000, 13)\n"
            "SELECT at, value FROM measured WHERE device = :d AND at > 1500000 ORDER BY at DESC LIMIT 20;\n"
            "UPDATE devices SET seen = seen + 1 WHERE id = :d;\n",
            weight=3,
        ),
        Script(
            "\\set j random(1, 300000)\nBEGIN;\n"
            "SELECT payload FROM jobs WHERE id = :j FOR UPDATE SKIP LOCKED;\n"
            "UPDATE jobs SET done = done + 1 WHERE id = :j;\nEND;\n",
            weight=2,
        ),
    ),
    setup=(
        "CREATE TABLE measured (at int, device int, value float, note text) PARTITION BY RANGE (at)",
        *(
            f"CREATE TABLE measured_{part} PARTITION OF measured"
            f" FOR VALUES FROM ({part * 250_000}) TO ({(part + 1) * 250_000})"
            for part in range(9)
        ),
        "INSERT INTO measured SELECT i, 1 + (i * 17) % 5000, i / 7.0, repeat('m', 90)"
        " FROM generate_series(1, 2000000) i",
        "CREATE INDEX ON measured (at)",
        "CREATE INDEX ON measured (device, at)",
        "CREATE TABLE devices (id int PRIMARY KEY, seen int, name text) WITH (fillfactor = 60)",
        "INSERT INTO devices SELECT i, 0, repeat('d', 300) FROM generate_series(1, 5000) i",
        "CREATE TABLE jobs (id int PRIMARY KEY, done int, payload text) WITH (fillfactor = 75)",
        "INSERT INTO jobs SELECT i, 0, repeat('j', 400) FROM generate_series(1, 300000) i",
        "VACUUM (ANALYZE)",
    ),
    needs_pgbench_tables=False,
)

BLIND = (DOCUMENTS, GRAPH, PARTITIONS)
