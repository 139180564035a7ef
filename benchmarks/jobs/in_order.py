"""Loads whose pages come in the order of their blocks, beside ordinary reads, as people report them.

Where each was reported is in README.md. VACUUM is part of a load, so it runs as often at every size.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.calibration.specification import Script, Specification, Stream
from benchmarks.jobs.loads import _items, _spec, _zipf

_ROWS = 600_000
_READ = _zipf(_ROWS) + "SELECT val, filler FROM items WHERE id = :k;"
_ITEMS = _items(_ROWS, 100)


def _reads(per_second: float) -> Stream:
    """Return ordinary reads beside: Zipf's law over a table of 80 MB."""
    return Stream(name="reads", clients=2, transactions_per_second=per_second, scripts=(Script(text=_READ),))


def _vacuum(table: str, in_a_stretch: int = 2) -> Stream:
    """Return the VACUUM of a table, as often at every size: autovacuum's would come when they come."""
    return _one("vacuum", in_a_stretch / 11, f"VACUUM {table};", simple=True)


def _loads(seed: int, tag: str, setup: tuple[str, ...], *streams: Stream) -> Specification:
    return _spec(seed, tag, setup, streams, autovacuum="off")


def _one(name: str, per_second: float, *texts: str, clients: int = 1, simple: bool = False) -> Stream:
    return Stream(
        name=name,
        clients=clients,
        transactions_per_second=per_second,
        scripts=tuple(Script(text=text) for text in texts),
        simple=simple,
    )


def backlog() -> Specification:
    """A queue whose backlog is larger than the pool: put at its end, claimed and deleted at its head."""
    setup = (
        *_ITEMS,
        "CREATE TABLE jobs (id bigserial PRIMARY KEY, state int NOT NULL, payload text)",
        "INSERT INTO jobs (state, payload) SELECT 0, repeat('p', 300) FROM generate_series(1, 150000)",
        "CREATE INDEX ON jobs (state, id)",
    )
    put = "INSERT INTO jobs (state, payload) SELECT 0, repeat('p', 300) FROM generate_series(1, 10) i;"
    claim = (
        "UPDATE jobs SET state = 1 WHERE id IN (SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT 10"
        " FOR UPDATE SKIP LOCKED);"
    )
    done = (
        "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE state = 1 ORDER BY id LIMIT 10"
        " FOR UPDATE SKIP LOCKED);"
    )
    return _loads(
        101, "backlog", setup, _one("queue", 60, put, claim, done, clients=2), _vacuum("jobs"), _reads(400)
    )


def outbox() -> Specification:
    """An outbox: rows beside a write, published in order by 50, the oldest published ones deleted by 50."""
    setup = (
        *_ITEMS,
        "CREATE TABLE outbox (id bigserial PRIMARY KEY, item bigint, payload text, published timestamptz)",
        "INSERT INTO outbox (item, payload, published) SELECT i, repeat('p', 300), now()"
        " FROM generate_series(1, 120000) i",
        "CREATE INDEX ON outbox (id) WHERE published IS NULL",
    )
    write = (
        _zipf(_ROWS) + "BEGIN;\nUPDATE items SET n = n + 1 WHERE id = :k;\n"
        "INSERT INTO outbox (item, payload) VALUES (:k, repeat('p', 300));\nCOMMIT;"
    )
    publish = (
        "UPDATE outbox SET published = now() WHERE id IN (SELECT id FROM outbox WHERE published IS NULL"
        " ORDER BY id LIMIT 50 FOR UPDATE SKIP LOCKED);"
    )
    forget = "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT 50);"
    streams = (
        _one("write", 100, write, clients=2),
        _one("publish", 2.2, publish),
        _one("forget", 2.2, forget),
        _vacuum("outbox"),
        _reads(300),
    )
    return _loads(102, "outbox", setup, *streams)


def archiver() -> Specification:
    """Old orders are moved to an archive, 200 at a time in their order; the newest are read most."""
    rows = 500_000
    setup = (
        "CREATE SEQUENCE part MINVALUE 0 START 0",
        "CREATE TABLE orders (id bigint PRIMARY KEY, n int NOT NULL, filler text)",
        f"INSERT INTO orders SELECT i, 0, repeat('o', 120) FROM generate_series(1, {rows}) i",
        "CREATE TABLE archive (LIKE orders)",
    )
    move = (
        "SELECT nextval('part') AS p \\gset\n"
        "WITH old AS (DELETE FROM orders WHERE id > :p::bigint * 200 AND id <= :p::bigint * 200 + 200"
        " RETURNING *) INSERT INTO archive SELECT * FROM old;"
    )
    read = (
        f"\\set a random_exponential(0, {rows // 2}, 6)\n"
        f"SELECT n, filler FROM orders WHERE id = {rows} - :a::bigint;"
    )
    reads = Stream(name="reads", clients=2, transactions_per_second=500, scripts=(Script(text=read),))
    return _loads(103, "archiver", setup, _one("move", 5, move), reads)


def keyset() -> Specification:
    """An export by key, 100 rows at a time, where the order of keys has nothing to do with that of rows."""
    setup = (
        *_ITEMS,
        "CREATE SEQUENCE page MINVALUE 0 START 0",
        "CREATE TABLE documents (id char(32) PRIMARY KEY, filler text)",
        "INSERT INTO documents SELECT md5(i::text), repeat('d', 200) FROM generate_series(1, 200000) i",
    )
    page = (
        "SELECT lpad(to_hex((nextval('page') * 30000) % 16777216), 6, '0') AS p \\gset\n"
        "SELECT id, filler FROM documents WHERE id > :p ORDER BY id LIMIT 100;"
    )
    return _loads(104, "keyset", setup, _one("export", 2, page), _reads(500))


def upserts() -> Specification:
    """All rows of a table a third larger than the pool are refreshed in a cycle, 40 at a time."""
    rows = 19_000
    setup = (
        *_ITEMS,
        "CREATE SEQUENCE part MINVALUE 0 START 0",
        "CREATE TABLE prices (id int PRIMARY KEY, n int NOT NULL, filler text) WITH (fillfactor = 75)",
        f"INSERT INTO prices SELECT i, 0, repeat('o', 900) FROM generate_series(0, {rows - 1}) i",
    )
    upsert = (
        f"SELECT nextval('part') * 40 % {rows} AS p \\gset\n"
        "INSERT INTO prices SELECT i, 0, repeat('o', 900) FROM generate_series(:p::int, :p::int + 39) i"
        " ON CONFLICT (id) DO UPDATE SET n = prices.n + 1;"
    )
    return _loads(105, "upserts", setup, _one("refresh", 15, upsert), _vacuum("prices"), _reads(400))


def rollup() -> Specification:
    """Samples are appended; the last 20,000 of them are summed up every two seconds."""
    rows = 600_000
    setup = (
        "CREATE SEQUENCE last",
        f"SELECT setval('last', {rows})",
        "CREATE TABLE samples (id bigint, series int NOT NULL, value float8 NOT NULL, note text)",
        f"INSERT INTO samples SELECT i, i % 500, i, repeat('n', 60) FROM generate_series(1, {rows}) i",
        "CREATE INDEX ON samples (id)",
        "CREATE INDEX ON samples (series, id)",
        "CREATE TABLE sums (series int, part bigint, n bigint, value float8, PRIMARY KEY (series, part))",
    )
    put = (
        "INSERT INTO samples SELECT nextval('last'), i * 37 % 500, i, repeat('n', 60)"
        " FROM generate_series(1, 20) i;"
    )
    sum_up = (
        "SELECT last_value - 20000 AS p FROM last \\gset\n"
        "INSERT INTO sums SELECT series, id / 10000, count(*), sum(value) FROM samples WHERE id > :p::bigint"
        " GROUP BY 1, 2 ON CONFLICT (series, part) DO UPDATE SET n = excluded.n, value = excluded.value;"
    )
    look = "\\set s random(0, 499)\nSELECT value FROM samples WHERE series = :s ORDER BY id DESC LIMIT 50;"
    streams = (_one("put", 20, put), _one("sum", 0.5, sum_up), _one("look", 20, look))
    return _loads(106, "rollup", setup, *streams)


def matview() -> Specification:
    """A materialized view of 40,000 rows is refreshed concurrently, and read; its table is a few MB."""
    setup = (
        *_ITEMS,
        "CREATE TABLE sales (id bigint PRIMARY KEY, item int NOT NULL, amount int NOT NULL, note text)",
        "INSERT INTO sales SELECT i, i % 40000, i % 100, repeat('s', 60) FROM generate_series(1, 100000) i",
        "CREATE MATERIALIZED VIEW totals AS SELECT item, sum(amount) AS amount, max(note) AS note"
        " FROM sales GROUP BY item",
        "CREATE UNIQUE INDEX ON totals (item)",
    )
    refresh = "REFRESH MATERIALIZED VIEW CONCURRENTLY totals;"
    write = "\\set s random(1, 100000)\nUPDATE sales SET amount = amount + 1 WHERE id = :s;"
    look = "\\set s random_zipfian(1, 40000, 1.01)\nSELECT amount FROM totals WHERE item = :s;"
    streams = (
        _one("refresh", 0.2, refresh, simple=True),
        _one("write", 20, write),
        _one("look", 100, look),
        _reads(400),
    )
    return _loads(107, "matview", setup, *streams)


def retention() -> Specification:
    """An event log: rows are appended, the oldest are deleted by 100, the last of an entity are read."""
    rows = 250_000
    setup = (
        *_ITEMS,
        "CREATE TABLE events (id bigserial PRIMARY KEY, entity int NOT NULL, body text)",
        "INSERT INTO events (entity, body) SELECT 1 + i * 7919 % 3000, repeat('e', 150)"
        f" FROM generate_series(1, {rows}) i",
        "CREATE INDEX ON events (entity, id)",
    )
    put = (
        "\\set e random_zipfian(1, 3000, 1.01)\n"
        "INSERT INTO events (entity, body) SELECT :e, repeat('e', 150) FROM generate_series(1, 10) i;"
    )
    purge = "DELETE FROM events WHERE id IN (SELECT id FROM events ORDER BY id LIMIT 100);"
    look = (
        "\\set e random_zipfian(1, 3000, 1.01)\n"
        "SELECT body FROM events WHERE entity = :e ORDER BY id DESC LIMIT 10;"
    )
    streams = (
        _one("put", 20, put),
        _one("purge", 2, purge),
        _one("look", 60, look),
        _vacuum("events"),
        _reads(300),
    )
    return _loads(108, "retention", setup, *streams)


def cursor() -> Specification:
    """A cursor walks a table of 12 MB in eight seconds; at four times the pool it is no longer a ring's."""
    setup = (
        *_ITEMS,
        "CREATE TABLE layer (id bigint, shape text)",
        "INSERT INTO layer SELECT i, repeat('g', 900) FROM generate_series(1, 12000) i",
    )
    walk = (
        "DO $do$ DECLARE r record; n int := 0; BEGIN FOR r IN SELECT id, shape FROM layer LOOP n := n + 1;"
        " IF n % 600 = 0 THEN PERFORM pg_sleep(0.35); END IF; END LOOP; END $do$;"
    )
    return _loads(109, "cursor", setup, _one("walk", 0.1, walk, simple=True), _reads(500))


def loop() -> Specification:
    """All rows of a table a fifth larger than the pool are read by their key in a minute, again and again."""
    rows = 22_000
    setup = (
        *_ITEMS,
        "CREATE SEQUENCE part MINVALUE 0 START 0",
        "CREATE TABLE devices (id int PRIMARY KEY, filler text)",
        f"INSERT INTO devices SELECT i, repeat('o', 900) FROM generate_series(0, {rows - 1}) i",
    )
    poll = (
        f"SELECT nextval('part') * 20 % {rows} AS p \\gset\n"
        "SELECT id, filler FROM devices WHERE id BETWEEN :p::int AND :p::int + 19;"
    )
    return _loads(110, "loop", setup, _one("poll", 18, poll), _reads(300))


def brin() -> Specification:
    """Reports over ranges of a table with a BRIN index, the newest most, while rows are appended."""
    rows = 600_000
    setup = (
        "CREATE SEQUENCE last",
        f"SELECT setval('last', {rows})",
        "CREATE TABLE measures (id bigint NOT NULL, value int NOT NULL, note text)",
        f"INSERT INTO measures SELECT i, i % 977, repeat('m', 80) FROM generate_series(1, {rows}) i",
        "CREATE INDEX ON measures USING brin (id) WITH (pages_per_range = 16, autosummarize = on)",
        *_ITEMS,
    )
    report = (
        f"\\set a random_exponential(6000, {rows - 1000}, 5)\n"
        "SELECT last_value - :a::bigint AS p FROM last \\gset\n"
        "SELECT avg(value), max(note) FROM measures WHERE id BETWEEN :p::bigint AND :p::bigint + 5000;"
    )
    put = "INSERT INTO measures SELECT nextval('last'), i, repeat('m', 80) FROM generate_series(1, 10) i;"
    return _loads(111, "brin", setup, _one("report", 2, report), _one("put", 20, put), _reads(300))


def followers() -> Specification:
    """A log with two readers: one at its end, one 1,600 blocks behind it."""
    rows, behind = 60_000, 12_800
    setup = (
        *_ITEMS,
        "CREATE SEQUENCE last",
        f"SELECT setval('last', {rows})",
        f"CREATE SEQUENCE first_reader START {rows}",
        f"CREATE SEQUENCE second_reader START {rows - behind}",
        "CREATE TABLE log (id bigint PRIMARY KEY, body text)",
        f"INSERT INTO log SELECT i, repeat('l', 900) FROM generate_series(1, {rows}) i",
    )
    step = (
        "SELECT {name} AS p FROM (SELECT max(v) AS {name} FROM (SELECT nextval('{name}') AS v"
        " FROM generate_series(1, 20)) n) m \\gset\n"
        "SELECT id, body FROM log WHERE id > :p::bigint - 20 AND id <= :p::bigint;"
    )
    put = (
        "INSERT INTO log SELECT nextval('last'), repeat('l', 900) FROM generate_series(1, 20) i;\n"
        + step.format(name="first_reader")
        + "\n"
        + step.format(name="second_reader")
    )
    return _loads(112, "followers", setup, _one("log", 20, put), _reads(400))


def backfill() -> Specification:
    """A column is filled by ranges of the key; new versions go to the table's end."""
    setup = (*_items(_ROWS, 100), "CREATE SEQUENCE part MINVALUE 0 START 0")
    fill = (
        "SELECT nextval('part') * 200 % 590000 AS p \\gset\n"
        "UPDATE items SET n = n + 1 WHERE id > :p::bigint AND id <= :p::bigint + 200;"
    )
    return _loads(113, "backfill", setup, _one("fill", 5, fill), _reads(500))


def sessions() -> Specification:
    """Sessions end at random, and new ones fill the free space that VACUUM found."""
    rows = 120_000
    setup = (
        *_ITEMS,
        "CREATE SEQUENCE last",
        f"SELECT setval('last', {rows})",
        "CREATE TABLE sessions (id bigint PRIMARY KEY, seen int NOT NULL, data text) WITH (fillfactor = 90)",
        f"INSERT INTO sessions SELECT i, 0, repeat('s', 250) FROM generate_series(1, {rows}) i",
        "DELETE FROM sessions WHERE id % 7 = 0",
    )
    put = "INSERT INTO sessions SELECT nextval('last'), 0, repeat('s', 250) FROM generate_series(1, 5) i;"
    end = f"\\set d random(1, {rows})\nDELETE FROM sessions WHERE id BETWEEN :d AND :d + 5;"
    touch = (
        f"\\set a random_exponential(0, {rows}, 9)\n"
        "UPDATE sessions SET seen = seen + 1 WHERE id = (SELECT last_value FROM last) - :a::bigint;"
    )
    streams = (
        _one("put", 20, put),
        _one("end", 20, end),
        _one("touch", 60, touch),
        _vacuum("sessions"),
        _reads(300),
    )
    return _loads(114, "sessions", setup, *streams)


LOADS: dict[str, Callable[[], Specification]] = {
    "backlog": backlog,
    "outbox": outbox,
    "archiver": archiver,
    "keyset": keyset,
    "upserts": upserts,
    "rollup": rollup,
    "matview": matview,
    "retention": retention,
    "cursor": cursor,
    "loop": loop,
    "brin": brin,
    "followers": followers,
    "backfill": backfill,
    "sessions": sessions,
}
"""By name."""
