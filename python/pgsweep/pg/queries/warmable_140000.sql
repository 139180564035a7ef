-- Which relations this role may warm: SELECT on the relation, for an index on the table it serves ($1: true) or on itself.
SELECT c.oid::int8
FROM pg_catalog.pg_class AS c
LEFT JOIN pg_catalog.pg_index AS i ON i.indexrelid = c.oid
WHERE pg_catalog.has_table_privilege(CASE WHEN %s THEN coalesce(i.indrelid, c.oid) ELSE c.oid END, 'SELECT')
  AND c.relkind IN ('r', 'i', 't', 'm')
