-- What the tables of the history of `serve` take on disk, with their indexes.
SELECT coalesce(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)), 0)::int8 AS size_bytes
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'pgsweep_history' AND c.relkind = 'r'
