"""Loads of real jobs: SQL that makes the tables, pgbench scripts that use them, and at which rates.

They are what people run beside the laws that benchmarks/calibration draws: a queue, short and long ranges of
an index, many tables of a kind, a series in time. Rates are low, because many servers share a machine while a
truth is measured.
"""

from __future__ import annotations

from collections.abc import Callable

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
    setup = (
        "CREATE SEQUENCE last",
        f"SELECT setval('last', {rows})",
        "CREATE TABLE usertable (id bigint PRIMARY KEY, fields text)",
        f"INSERT INTO usertable SELECT i, repeat('f', 1000) FROM generate_series(1, {rows}) i",
    )
    scan = (
        _zipf(rows, 1.001) + "\\set s random(1, 100)\n"
        "SELECT id, fields FROM usertable WHERE id >= :k ORDER BY id LIMIT :s;"
    )
    insert = "INSERT INTO usertable VALUES (nextval('last'), repeat('f', 1000));"
    scripts = (Script(text=scan, weight=19), Script(text=insert, weight=1))
    stream = Stream(name="main", clients=4, transactions_per_second=300, scripts=scripts)
    return _spec(3, "ycsb e", setup, (stream,), 2 * _BLOCKS_16MB)


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


LOADS: dict[str, Callable[[], Specification]] = {
    "queue": queue,
    "ranges": ranges,
    "short_scans": short_scans,
    "shop": shop,
    "tenants": tenants,
    "series": series,
    "hot_spots": hot_spots,
}
"""By name."""
