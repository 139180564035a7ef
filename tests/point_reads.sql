-- Ten rows at random by the index, one after the other. As ten transactions they would take several times the
-- processor, most of it for waking client and server. OFFSET keeps the drawing apart from the reading.
SELECT sum((SELECT abalance FROM pgbench_accounts WHERE aid = drawn))
FROM (SELECT 1 + floor(random() * 100000 * :scale)::int AS drawn FROM generate_series(1, 10) OFFSET 0) AS keys;
