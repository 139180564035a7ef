-- The rows of a table and its partitions that are dead and that live, as ANALYZE has last estimated them.
SELECT COALESCE(pg_catalog.sum(pg_catalog.pg_stat_get_dead_tuples(t.oid)), 0)::int8 AS dead,
       COALESCE(pg_catalog.sum(pg_catalog.pg_stat_get_live_tuples(t.oid)), 0)::int8 AS live
FROM (SELECT %(oid)s::oid UNION SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(%(oid)s::regclass) AS p) AS t (oid)
