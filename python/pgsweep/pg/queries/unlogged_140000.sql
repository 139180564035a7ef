-- Unlogged relations of this database. While the server is in recovery they have no blocks and may not be read.
SELECT c.oid::int8
FROM pg_catalog.pg_class AS c
WHERE c.relpersistence = 'u' AND c.relkind IN ('r', 'i', 't', 'm', 'S')
