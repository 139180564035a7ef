"""Loads of real jobs: SQL that makes the tables, pgbench scripts that use them, and at which rates.

They are what people run beside the laws that benchmarks/calibration draws: a queue, short and long ranges of
an index, many tables of a kind, a series in time. Rates are low, because many servers share a machine while a
truth is measured.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from benchmarks.calibration.specification import Script, Specification, Stream

_BLOCKS_16MB = 2048
_FACTORS = (0.5, 1.0, 2.0, 4.0)
_SETTINGS = {
    "autovacuum": "on",
    "autovacuum_naptime": "2s",
    "checkpoint_timeout": "60s",
    "max_wal_size": "2GB",
    "max_connections": "60",
}
_END = ("VACUUM (ANALYZE)", "CHECKPOINT")
_INSERT = "INSERT INTO usertable VALUES (nextval('last'), repeat('f', 1000));"


def _items(rows: int, filler_bytes: int) -> tuple[str, ...]:
    return (
        "CREATE TABLE items (id bigint PRIMARY KEY, val int NOT NULL, n int NOT NULL DEFAULT 0, filler text)"
        " WITH (fillfactor = 95)",
        f"INSERT INTO items SELECT i, i % 1000, 0, repeat('x', {filler_bytes})"
        f" FROM generate_series(1, {rows}) i",
    )


def _zipf(rows: int, exponent: float = 1.05, seed: int = 5) -> str:
    return f"\\set r random_zipfian(1, {rows}, {exponent})\n\\set k 1 + permute(:r - 1, {rows}, {seed})\n"


def _spec(
    seed: int,
    tag: str,
    setup: tuple[str, ...],
    streams: tuple[Stream, ...],
    blocks: int = _BLOCKS_16MB,
    **settings: str,
) -> Specification:
    return Specification(
        seed=seed,
        observed_blocks=blocks,
        size_factors=_FACTORS,
        tables=(),
        streams=streams,
        settings=_SETTINGS | settings,
        tags=(tag,),
        setup=(*setup, *_END),
    )


def _usertable(rows: int) -> tuple[str, ...]:
    return (
        "CREATE SEQUENCE last",
        f"SELECT setval('last', {rows})",
        "CREATE TABLE usertable (id bigint PRIMARY KEY, fields text)",
        f"INSERT INTO usertable SELECT i, repeat('f', 1000) FROM generate_series(1, {rows}) i",
    )


def queue() -> Specification:
    """A job queue of a few MB (SKIP LOCKED, deletes, autovacuum) beside Zipf reads of a larger table."""
    rows = 600_000
    setup = (
        *_items(rows, 100),
        "CREATE TABLE jobs (id bigserial PRIMARY KEY, state int NOT NULL, item bigint NOT NULL, payload text)"
        " WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)",
        "INSERT INTO jobs (state, item, payload) SELECT 0, i, repeat('p', 200)"
        " FROM generate_series(1, 3000) i",
    )
    put = _zipf(rows) + "INSERT INTO jobs (state, item, payload) VALUES (0, :k, repeat('p', 200));"
    take = (
        "DELETE FROM jobs WHERE id ="
        " (SELECT id FROM jobs WHERE state = 0 ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1);"
    )
    read = _zipf(rows) + "SELECT val, filler FROM items WHERE id = :k;"
    scripts = (Script(text=put, weight=5), Script(text=take, weight=5), Script(text=read, weight=40))
    stream = Stream(name="main", clients=4, transactions_per_second=600, scripts=scripts)
    return _spec(1, "queue", setup, (stream,))


def ranges() -> Specification:
    """Index ranges of 100 to 200 blocks beside Zipf reads of single rows."""
    rows = 700_000
    read = _zipf(rows) + "SELECT val, filler FROM items WHERE id = :k;"
    # Some 53 rows are on a page.
    long = (
        f"\\set s random(5300, 10600)\n\\set k random(1, {rows} - 11000)\n"
        "SELECT sum(val + n) FROM items WHERE id BETWEEN :k::bigint AND :k::bigint + :s::bigint;"
    )
    scripts = (Script(text=read, weight=300), Script(text=long, weight=1))
    stream = Stream(name="main", clients=4, transactions_per_second=900, scripts=scripts)
    return _spec(
        2, "ranges", (*_items(rows, 100), "ALTER DATABASE bench SET enable_seqscan = off"), (stream,)
    )


def short_scans() -> Specification:
    """YCSB E: ranges of 1 to 100 rows of 1 kB that begin by Zipf's law, and 5 % inserts."""
    rows = 150_000
    scan = (
        _zipf(rows, 1.001) + "\\set s random(1, 100)\n"
        "SELECT id, fields FROM usertable WHERE id >= :k ORDER BY id LIMIT :s;"
    )
    scripts = (Script(text=scan, weight=19), Script(text=_INSERT, weight=1))
    stream = Stream(name="main", clients=4, transactions_per_second=300, scripts=scripts)
    return _spec(3, "ycsb e", _usertable(rows), (stream,), 2 * _BLOCKS_16MB)


def shop() -> Specification:
    """Zipf reads, 18 % writes, 2 % index ranges."""
    rows = 700_000
    read = _zipf(rows) + "SELECT val, filler FROM items WHERE id = :k;"
    write = _zipf(rows) + "UPDATE items SET n = n + 1 WHERE id = :k;"
    some = (
        _zipf(rows, 1.05, 8) + "\\set s random(500, 4000)\n"
        "SELECT sum(val + n) FROM items WHERE id BETWEEN :k::bigint AND :k::bigint + :s::bigint;"
    )
    scripts = (Script(text=read, weight=80), Script(text=write, weight=18), Script(text=some, weight=2))
    stream = Stream(name="main", clients=4, transactions_per_second=600, scripts=scripts)
    return _spec(4, "shop", _items(rows, 100), (stream,))


def tenants() -> Specification:
    """200 tables of a kind: each is read and written by its tenant, the tenants by Zipf's law."""
    tables, rows = 200, 6_000
    create = (
        f"DO $do$ BEGIN FOR n IN 1..{tables} LOOP EXECUTE format('CREATE TABLE tenant_%s (id int PRIMARY KEY,"
        f" n int NOT NULL, filler text) WITH (fillfactor = 90)', n);"
        f" EXECUTE format('INSERT INTO tenant_%s SELECT i, 0, repeat(''t'', 90)"
        f" FROM generate_series(1, {rows}) i', n); END LOOP; END $do$"
    )
    draw = f"\\set t 1 + permute(random_zipfian(1, {tables}, 1.01) - 1, {tables}, 3)\n" + _zipf(rows, 1.01, 4)
    read = draw + "SELECT n, filler FROM tenant_:t WHERE id = :k;"
    write = draw + "UPDATE tenant_:t SET n = n + 1 WHERE id = :k;"
    scripts = (Script(text=read, weight=9), Script(text=write, weight=1))
    stream = Stream(name="main", clients=4, transactions_per_second=500, scripts=scripts, simple=True)
    return _spec(5, "tenants", (create,), (stream,))


def series() -> Specification:
    """A series in time: rows are appended, the newest are read most, older ones by ranges."""
    rows = 900_000
    setup = (
        "CREATE SEQUENCE last",
        f"SELECT setval('last', {rows})",
        "CREATE TABLE readings (id bigint, sensor int NOT NULL, value float8 NOT NULL, note text)",
        f"INSERT INTO readings SELECT i, i % 500, i, repeat('n', 40) FROM generate_series(1, {rows}) i",
        "CREATE INDEX ON readings (id)",
        "CREATE INDEX ON readings (sensor, id)",
    )
    put = (
        "\\set s random(0, 499)\n"
        "INSERT INTO readings SELECT nextval('last'), (:s::int + i) % 500, i, repeat('n', 40)"
        " FROM generate_series(1, 10) i;"
    )
    late = (
        f"\\set a random_exponential(1, {rows}, 40)\n"
        "SELECT avg(value) FROM readings WHERE id BETWEEN (SELECT last_value FROM last) - :a::bigint - 200"
        " AND (SELECT last_value FROM last) - :a::bigint;"
    )
    sensor = "\\set s random(0, 499)\nSELECT value FROM readings WHERE sensor = :s ORDER BY id DESC LIMIT 20;"
    scripts = (Script(text=put, weight=2), Script(text=late, weight=10), Script(text=sensor, weight=2))
    stream = Stream(name="main", clients=4, transactions_per_second=250, scripts=scripts)
    return _spec(6, "series", setup, (stream,))


def hot_spots() -> Specification:
    """Hot spots that move: a window of the table is read often, and another one a minute later."""
    rows = 700_000
    read = (
        "\\set step :step + 1\n\\set a random_exponential(1, 60000, 3)\n"
        f"\\set k 1 + (:step * 8 + :a) % {rows}\n"
        "SELECT val, filler FROM items WHERE id = :k;"
    )
    wide = f"\\set k random(1, {rows})\nSELECT val, filler FROM items WHERE id = :k;"
    scripts = (Script(text=read, weight=7), Script(text=wide, weight=3))
    stream = Stream(name="main", clients=4, transactions_per_second=600, scripts=scripts)
    return _spec(7, "hot spots", _items(rows, 100), (stream,))


def vectors() -> Specification:
    """Vector search: walks over a graph of neighbours, as in HNSW, starts by Zipf's law; rows of 1 kB."""
    rows, near, steps = 60_000, 12, 30
    setup = (
        "CREATE TABLE nodes (id int PRIMARY KEY, near int[] NOT NULL, v bytea NOT NULL)",
        "ALTER TABLE nodes ALTER v SET STORAGE PLAIN",
        # Where a node lies in space has nothing to do with its row: its neighbours are rows anywhere.
        f"INSERT INTO nodes SELECT i, (SELECT array_agg(((i + 7919 * ((2 * j - 13) ^ 3 / 8)::int) % {rows}"
        f" + {rows}) % {rows}) FROM generate_series(1, {near}) j)::int[], decode(repeat('ab', 900), 'hex')"
        f" FROM generate_series(0, {rows - 1}) i",
    )
    search = (
        f"\\set r random_zipfian(1, 2000, 1.01)\n\\set k (:r * 237570) % {rows}\n"
        "\\set s random(1, 1000000)\n"
        "WITH RECURSIVE walk(step, id, near) AS ("
        "SELECT 0, n.id, n.near FROM nodes n WHERE n.id = :k::int UNION ALL"
        " SELECT step + 1, n.id, n.near FROM walk, LATERAL (SELECT id, near FROM nodes"
        f" WHERE id = walk.near[1 + abs(hashint4(:s::int + step)) % {near}]) n WHERE step < {steps})"
        " SELECT count(*) FROM walk;"
    )
    stream = Stream(name="main", clients=4, transactions_per_second=60, scripts=(Script(text=search),))
    return _spec(8, "vectors", setup, (stream,))


def documents() -> Specification:
    """Full text and jsonb, each with a GIN index: two words of a text, an attribute; 4 % inserts."""
    rows, words, least = 50_000, 20_000, 200
    make = (
        "SELECT i, array_to_tsvector(array(SELECT DISTINCT 'w' || (1 + floor({w} * random() ^ 3))::int"
        " FROM generate_series(1, 24) WHERE i > 0)), jsonb_build_object('kind', (i * 37) % 300, 'owner',"
        " (i * 7919) % 6000), repeat('d', 300)"
    ).replace("{w}", str(words))
    setup = (
        "CREATE SEQUENCE last",
        f"SELECT setval('last', {rows})",
        "CREATE TABLE docs (id bigint PRIMARY KEY, body tsvector, attributes jsonb, note text)",
        f"INSERT INTO docs {make} FROM generate_series(1, {rows}) i",
        "CREATE INDEX ON docs USING gin (body)",
        "CREATE INDEX ON docs USING gin (attributes jsonb_path_ops)",
        "ALTER DATABASE bench SET enable_seqscan = off",
    )
    text = (
        f"\\set a {least} + random_zipfian(1, {words} - {least}, 1.05)\n"
        f"\\set b random({least}, {least} * 5)\n"
        "SELECT count(note) FROM docs WHERE body @@ (quote_literal('w' || :a) || ' & ' ||"
        " quote_literal('w' || :b))::tsquery OR (id % 7 = 0 AND body @@ quote_literal('w' || :a)::tsquery);"
    )
    owner = (
        "\\set o random_zipfian(1, 6000, 1.05)\n"
        "SELECT count(note) FROM docs WHERE attributes @> jsonb_build_object('owner', :o::int);"
    )
    put = f"INSERT INTO docs {make} FROM (SELECT nextval('last') AS i) n;"
    scripts = (Script(text=text, weight=10), Script(text=owner, weight=14), Script(text=put, weight=1))
    stream = Stream(name="main", clients=4, transactions_per_second=60, scripts=scripts)
    return _spec(9, "full text", setup, (stream,))


def updates() -> Specification:
    """YCSB A: one half reads, one half updates of rows of 1 kB by Zipf's law."""
    rows = 120_000
    read = _zipf(rows, 1.001) + "SELECT fields FROM usertable WHERE id = :k;"
    write = _zipf(rows, 1.001) + "UPDATE usertable SET fields = repeat('g', 1000) WHERE id = :k;"
    scripts = (Script(text=read), Script(text=write))
    stream = Stream(name="main", clients=4, transactions_per_second=400, scripts=scripts)
    return _spec(10, "ycsb a", _usertable(rows), (stream,), 2 * _BLOCKS_16MB)


def latest() -> Specification:
    """YCSB D: 95 % reads of what is new, 5 % inserts."""
    rows = 150_000
    read = (
        f"\\set a random_zipfian(1, {rows}, 1.001) - 1\n"
        "SELECT fields FROM usertable WHERE id = (SELECT last_value FROM last) - :a::bigint;"
    )
    scripts = (Script(text=read, weight=19), Script(text=_INSERT, weight=1))
    stream = Stream(name="main", clients=4, transactions_per_second=500, scripts=scripts)
    return _spec(11, "ycsb d", _usertable(rows), (stream,))


def maintenance() -> Specification:
    """Zipf reads and updates; beside them tables are dumped, vacuumed and indexed."""
    rows = 400_000
    setup = (
        *_items(rows, 100),
        "CREATE TABLE archive (id bigint, note text)",
        "INSERT INTO archive SELECT i, repeat('a', 400) FROM generate_series(1, 150000) i",
    )
    read = _zipf(rows) + "SELECT val, filler FROM items WHERE id = :k;"
    write = _zipf(rows) + "UPDATE items SET n = n + 1 WHERE id = :k;"
    main = Stream(
        name="main",
        clients=4,
        transactions_per_second=500,
        scripts=(Script(text=read, weight=8), Script(text=write, weight=2)),
    )
    # COPY is what pg_dump sends.
    chores = (
        "COPY archive TO '/dev/null';",
        "VACUUM items;",
        "CREATE INDEX i ON archive (id);\nDROP INDEX i;",
    )
    beside = Stream(
        name="chores",
        clients=1,
        transactions_per_second=0.2,
        scripts=tuple(Script(text=chore) for chore in chores),
        simple=True,
    )
    return _spec(12, "maintenance", setup, (main, beside))


def churn() -> Specification:
    """A connection for each transaction, which reads ten rows by Zipf's law and updates one."""
    rows = 500_000
    several = _zipf(rows) + "".join(
        f"\\set k{n} 1 + permute(random_zipfian(1, {rows}, 1.05) - 1, {rows}, 5)\n" for n in range(10)
    )
    reads = "".join(f"SELECT val, filler FROM items WHERE id = :k{n};\n" for n in range(10))
    script = Script(text=several + reads + "UPDATE items SET n = n + 1 WHERE id = :k;")
    stream = Stream(name="main", clients=4, transactions_per_second=25, scripts=(script,), reconnects=True)
    return _spec(13, "churn", _items(rows, 100), (stream,))


def standby() -> Specification:
    """Zipf's reads on a standby that replays the updates of its primary."""
    rows = 600_000
    read = _zipf(rows) + "SELECT val, filler FROM items WHERE id = :k;"
    write = _zipf(rows, 1.05, 9) + "UPDATE items SET n = n + 1 WHERE id = :k;"
    streams = (
        Stream(name="reads", clients=3, transactions_per_second=500, scripts=(Script(text=read),)),
        Stream(
            name="writes",
            clients=1,
            transactions_per_second=60,
            scripts=(Script(text=write),),
            on_primary=True,
        ),
    )
    # No query is cancelled for what the primary vacuums.
    settings = {
        "wal_level": "replica",
        "max_wal_senders": "10",
        "wal_keep_size": "1GB",
        "hot_standby_feedback": "on",
        "max_standby_streaming_delay": "-1",
    }
    found = _spec(14, "standby", _items(rows, 100), streams)
    return msgspec.structs.replace(found, settings=found.settings | settings, standby=True)


LOADS: dict[str, Callable[[], Specification]] = {
    "queue": queue,
    "ranges": ranges,
    "short_scans": short_scans,
    "shop": shop,
    "tenants": tenants,
    "series": series,
    "hot_spots": hot_spots,
    "vectors": vectors,
    "documents": documents,
    "updates": updates,
    "latest": latest,
    "maintenance": maintenance,
    "churn": churn,
    "standby": standby,
}
"""By name."""
