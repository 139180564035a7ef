"""Workloads outside the package: several tables, range scans, updates, joins, inserts.

They exist to find out where predictions fail. Early forms of them were looked at while the method was made,
so they are no blind test.
"""

from __future__ import annotations

from pgsweep.testbed.workloads import Script, Workload

# Room on each page keeps an updated row there (HOT). Without it a table grows by every update, its hot rows
# move together at the end, and minutes later the workload is another one: no truth could be measured.
_TABLES = (
    "CREATE TABLE customers"
    " (id int PRIMARY KEY, name text, balance bigint, seen timestamptz, filler text) WITH (fillfactor = 85)",
    "INSERT INTO customers SELECT i, md5(i::text), 0, now(), repeat('x', 120)"
    " FROM generate_series(1, 300000) i",
    "CREATE TABLE orders"
    " (id int PRIMARY KEY, customer int, status int, amount int, note text) WITH (fillfactor = 85)",
    "INSERT INTO orders SELECT i, 1 + (i::bigint * 7919 % 300000), 0, 1, repeat('y', 60)"
    " FROM generate_series(1, 1500000) i",
    "CREATE INDEX ON orders (customer)",
    "CREATE TABLE items (id int PRIMARY KEY, order_id int, quantity int, note text) WITH (fillfactor = 85)",
    "INSERT INTO items SELECT i, 1 + (i::bigint * 104729 % 1500000), 1, repeat('z', 90)"
    " FROM generate_series(1, 1500000) i",
    "CREATE INDEX ON items (order_id)",
    "CREATE TABLE events"
    " (id bigserial PRIMARY KEY, at timestamptz DEFAULT now(), kind int, ref int, body text)",
    "CREATE INDEX ON events (kind, at)",
    "VACUUM (ANALYZE)",
)


def _draw(variable: str, distribution: str, rows: int, seed: int) -> str:
    return f"\\set rank {distribution}\n\\set {variable} 1 + permute(:rank - 1, {rows}, {seed})\n"


_LOG = (
    "\\set ref random(1, 1000000)\n"
    "INSERT INTO events (kind, ref, body)"
    " VALUES (:ref::int % 10, :ref, 'what happened, in a few words of text');\n"
)

RANGES = Workload(
    name="ranges",
    title="skewed reads over an index, range scans of 20 to 3000 rows, updates read back, a log",
    scripts=(
        Script(
            _draw("c", "random_zipfian(1, 300000, 1.05)", 300_000, 1)
            + "SELECT * FROM customers WHERE id = :c;\nSELECT sum(amount) FROM orders WHERE customer = :c;\n",
            weight=6,
        ),
        Script(
            "\\set first random(1, 1500000)\n\\set rows random(20, 3000)\n"
            "SELECT sum(amount) FROM orders WHERE id BETWEEN :first::int AND :first::int + :rows::int;\n",
        ),
        Script(
            _draw("o", "random_zipfian(1, 1500000, 1.03)", 1_500_000, 2)
            + "UPDATE orders SET status = status + 1 WHERE id = :o;\n"
            "SELECT status FROM orders WHERE id = :o;\n",
            weight=3,
        ),
        Script(_LOG, weight=2),
    ),
    setup=_TABLES,
    needs_pgbench_tables=False,
)

UPDATES = Workload(
    name="updates",
    title="updates around a centre and by Zipf, index scans of random heap pages, a log, uniform reads",
    scripts=(
        Script(
            "\\set i random_gaussian(1, 1500000, 6)\nBEGIN;\n"
            "UPDATE items SET quantity = quantity + 1 WHERE id = :i;\n"
            "SELECT quantity FROM items WHERE id = :i;\nEND;\n",
            weight=3,
        ),
        Script(
            _draw("c", "random_zipfian(1, 300000, 1.2)", 300_000, 3)
            + "UPDATE customers SET balance = balance + 1, seen = now() WHERE id = :c;\n",
            weight=3,
        ),
        Script(
            "\\set o random(1, 1500000)\n\\set rows random(20, 400)\n"
            "SELECT count(*), max(quantity) FROM items"
            " WHERE order_id BETWEEN :o::int AND :o::int + :rows::int;\n",
            weight=2,
        ),
        Script(
            _LOG + "\\set c random(1, 300000)\nSELECT * FROM customers WHERE id = :c;\n",
            weight=2,
        ),
    ),
    setup=_TABLES,
    needs_pgbench_tables=False,
)

JOINS = Workload(
    name="joins",
    title="exponential reads, joins over an index, range scans, updates of two tables in one transaction",
    scripts=(
        Script(
            _draw("i", "random_exponential(1, 1500000, 8)", 1_500_000, 4)
            + "SELECT * FROM items WHERE id = :i;\n",
            weight=4,
        ),
        Script(
            "\\set c random(1, 299990)\n"
            "SELECT sum(o.amount) FROM customers c JOIN orders o ON o.customer = c.id"
            " WHERE c.id BETWEEN :c::int AND :c::int + 4;\n",
            weight=2,
        ),
        Script(
            "\\set first random(1, 1500000)\n\\set rows random(100, 3000)\n"
            "SELECT sum(quantity) FROM items WHERE id BETWEEN :first::int AND :first::int + :rows::int;\n",
        ),
        Script(
            _draw("o", "random_zipfian(1, 1500000, 1.15)", 1_500_000, 5)
            + "BEGIN;\nUPDATE orders SET status = status + 1, amount = amount + 1 WHERE id = :o;\n"
            "UPDATE customers SET balance = balance - 1 WHERE id = (:o::int % 300000) + 1;\nEND;\n",
            weight=3,
        ),
    ),
    setup=_TABLES,
    needs_pgbench_tables=False,
)

UNSEEN = (RANGES, UPDATES, JOINS)
