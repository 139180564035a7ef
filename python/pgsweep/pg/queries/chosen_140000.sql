-- A relation: itself, or the leaves of a partitioned one.
SELECT c.relkind::text AS kind,
       c.relpersistence::text AS persistence,
       ARRAY(SELECT t.relid::oid::int8 FROM pg_catalog.pg_partition_tree(c.oid) AS t WHERE t.isleaf) AS leaves,
       c.oid::int8 AS oid
FROM pg_catalog.pg_class AS c
WHERE c.oid = %s::oid
