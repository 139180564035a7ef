"""Loads for pools of gigabytes: tables of 12 GB, and transactions of many rows, so that few clients fill one.

A transaction looks up some dozens of keys inside the server, by Zipf's law with the ranks scattered over the
table. So a pool of 4 GB is replaced within a minute or two flat out, and within a quarter of an hour where
the load is paced; the law of the visits is the same.
"""

from __future__ import annotations

from pgsweep.testbed.workloads import ACCOUNTS_PER_SCALE, LARGE, ZIPF_FUNCTION, Script, Workload

_ROWS = f"{ACCOUNTS_PER_SCALE} * :scale"


def _read(count: int, exponent: float, prime: int) -> str:
    drawn = f"SELECT zipf({_ROWS}, {exponent}, {prime}) FROM generate_series(1, {count})"
    return f"SELECT sum(abalance) FROM pgbench_accounts WHERE aid = ANY (ARRAY({drawn}));\n"


def _range(rows: int, exponent: float, prime: int) -> str:
    return (
        f"SELECT zipf({_ROWS} / {rows}, {exponent}, {prime}) * {rows} - {rows} AS low \\gset\n"
        f"SELECT sum(abalance) FROM pgbench_accounts WHERE aid > :low AND aid <= :low + {rows};\n"
    )


# 58 rows are on a page: ranges of 20 and of 600 pages, of which the tops are asked for again and again.
REPORTS = Workload(
    name="reports",
    title="ranges of 20 and 600 pages beside point reads, 12 GB",
    scripts=(
        Script(_read(60, 1.15, 48271003), weight=12),
        Script(_range(1_160, 0.9, 1_299_709), weight=6),
        Script(_range(34_800, 1.1, 15_485_863), weight=1),
    ),
    setup=(ZIPF_FUNCTION,),
)

_WAREHOUSES = 110
_TABLES = (
    "CREATE TABLE warehouse (w int PRIMARY KEY, ytd numeric NOT NULL, filler text) WITH (fillfactor = 20)",
    "CREATE TABLE district (w int, d int, ytd numeric NOT NULL, next_o int NOT NULL, filler text,"
    " PRIMARY KEY (w, d)) WITH (fillfactor = 20)",
    "CREATE TABLE customer (w int, d int, c int, balance numeric NOT NULL, filler text,"
    " PRIMARY KEY (w, d, c)) WITH (fillfactor = 90)",
    "CREATE TABLE item (i int PRIMARY KEY, price numeric NOT NULL, filler text)",
    "CREATE TABLE stock (w int, i int, quantity int NOT NULL, filler text, PRIMARY KEY (w, i))"
    " WITH (fillfactor = 90)",
    "CREATE TABLE orders (w int, d int, o int, c int NOT NULL, carrier int,"
    " entered timestamptz DEFAULT now(), PRIMARY KEY (w, d, o))",
    "CREATE TABLE new_order (w int, d int, o int, PRIMARY KEY (w, d, o))",
    "CREATE TABLE order_line (w int, d int, o int, n int, i int NOT NULL, delivered timestamptz,"
    " filler text, PRIMARY KEY (w, d, o, n))",
    "CREATE TABLE history (w int, d int, c int, amount numeric, at timestamptz DEFAULT now(), filler text)",
)
_ROWS_OF_TABLES = (
    f"INSERT INTO warehouse SELECT w, 0, repeat('w', 80) FROM generate_series(0, {_WAREHOUSES - 1}) w",
    "INSERT INTO district SELECT w, d, 0, 3001, repeat('d', 80) FROM warehouse, generate_series(1, 10) d",
    "INSERT INTO customer SELECT w, d, c, 0, repeat('c', 520) FROM district, generate_series(1, 3000) c",
    "INSERT INTO item SELECT i, i % 100, repeat('i', 60) FROM generate_series(1, 100000) i",
    "INSERT INTO stock SELECT w, i, 50, repeat('s', 290) FROM warehouse, generate_series(1, 100000) i",
    "INSERT INTO orders SELECT w, d, o, 1 + o * 7 % 3000, 1 FROM district, generate_series(1, 3000) o",
    "INSERT INTO new_order SELECT w, d, o FROM district, generate_series(2901, 3000) o",
    "INSERT INTO order_line SELECT w, d, o, n, 1 + (o * 7919 + n * 104729 + d * 31) % 100000, now(),"
    " repeat('l', 24) FROM district, generate_series(1, 3000) o, generate_series(1, 10) n",
    "CREATE INDEX ON orders (w, d, c, o)",
)
# What an order-entry benchmark calls a non-uniform number: some hundreds of the values come often.
_NURAND = (
    "CREATE FUNCTION nurand(a int, most int) RETURNS int LANGUAGE sql VOLATILE AS $$"
    " SELECT 1 + ((floor(random() * (a + 1))::int | floor(random() * most)::int) + 123) % most $$",
)
_NEW_ORDER = """
CREATE FUNCTION enter_order(w_ int, d_ int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE o_ int; c_ int := nurand(1023, 3000); items int[];
BEGIN
  PERFORM balance FROM customer WHERE w = w_ AND d = d_ AND c = c_;
  UPDATE district SET next_o = next_o + 1 WHERE w = w_ AND d = d_ RETURNING next_o - 1 INTO o_;
  INSERT INTO orders (w, d, o, c) VALUES (w_, d_, o_, c_);
  INSERT INTO new_order VALUES (w_, d_, o_);
  items := ARRAY(SELECT DISTINCT nurand(8191, 100000) FROM generate_series(1, 10) ORDER BY 1);
  PERFORM price FROM item WHERE i = ANY (items);
  UPDATE stock SET quantity = CASE WHEN quantity > 10 THEN quantity - 1 ELSE 91 END
    WHERE w = w_ AND i = ANY (items);
  INSERT INTO order_line SELECT w_, d_, o_, n, i, NULL, repeat('l', 24)
    FROM unnest(items) WITH ORDINALITY AS each (i, n);
END $$"""
_PAYMENT = """
CREATE FUNCTION pay(w_ int, d_ int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE c_ int := nurand(1023, 3000);
BEGIN
  UPDATE warehouse SET ytd = ytd + 10 WHERE w = w_;
  UPDATE district SET ytd = ytd + 10 WHERE w = w_ AND d = d_;
  UPDATE customer SET balance = balance - 10 WHERE w = w_ AND d = d_ AND c = c_;
  INSERT INTO history (w, d, c, amount, filler) VALUES (w_, d_, c_, 10, repeat('h', 20));
END $$"""
_STATUS = """
CREATE FUNCTION status(w_ int, d_ int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE c_ int := nurand(1023, 3000); o_ int;
BEGIN
  PERFORM balance FROM customer WHERE w = w_ AND d = d_ AND c = c_;
  SELECT o INTO o_ FROM orders WHERE w = w_ AND d = d_ AND c = c_ ORDER BY o DESC LIMIT 1;
  PERFORM count(*) FROM order_line WHERE w = w_ AND d = d_ AND o = o_;
END $$"""
_DELIVER = """
CREATE FUNCTION deliver(w_ int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE o_ int; c_ int;
BEGIN
  FOR d_ IN 1..10 LOOP
    SELECT o INTO o_ FROM new_order WHERE w = w_ AND d = d_ ORDER BY o LIMIT 1;
    CONTINUE WHEN o_ IS NULL;
    DELETE FROM new_order WHERE w = w_ AND d = d_ AND o = o_;
    UPDATE orders SET carrier = 2 WHERE w = w_ AND d = d_ AND o = o_ RETURNING c INTO c_;
    UPDATE order_line SET delivered = now() WHERE w = w_ AND d = d_ AND o = o_;
    UPDATE customer SET balance = balance + 50 WHERE w = w_ AND d = d_ AND c = c_;
  END LOOP;
END $$"""
_LEVEL = """
CREATE FUNCTION level(w_ int, d_ int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE o_ int; low bigint;
BEGIN
  SELECT next_o INTO o_ FROM district WHERE w = w_ AND d = d_;
  SELECT count(*) INTO low FROM (SELECT DISTINCT i FROM order_line WHERE w = w_ AND d = d_ AND o >= o_ - 20) l
    JOIN stock s ON s.w = w_ AND s.i = l.i WHERE s.quantity < 15;
  RETURN low;
END $$"""
# Each client has warehouses of its own, so that none waits for another's rows.
_PLACE = f"\\set w 4 * random(0, {_WAREHOUSES // 4 - 1}) + :client_id % 4\n\\set d random(1, 10)\n"

ORDERS = Workload(
    name="orders",
    title="order entry in nine growing tables, 11 GB",
    scripts=(
        Script(_PLACE + "SELECT enter_order(:w, :d);\n", weight=45),
        Script(_PLACE + "SELECT pay(:w, :d);\n", weight=43),
        Script(_PLACE + "SELECT status(:w, :d);\n", weight=4),
        Script(_PLACE + "SELECT deliver(:w);\n", weight=4),
        Script(_PLACE + "SELECT level(:w, :d);\n", weight=4),
    ),
    setup=(
        *_TABLES,
        *_ROWS_OF_TABLES,
        *_NURAND,
        *(_NEW_ORDER, _PAYMENT, _STATUS, _DELIVER, _LEVEL),
        "VACUUM ANALYZE",
        "CHECKPOINT",
    ),
    needs_pgbench_tables=False,
)

LOADS = (LARGE, ORDERS, REPORTS)
