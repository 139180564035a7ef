-- The partitioned table at the top, for every partition that has storage. No lock is taken on any of them.
SELECT c.oid::int8,
       pg_catalog.convert_to(n.nspname::text, e.name) AS schema,
       pg_catalog.convert_to(r.relname::text, e.name) AS name
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_class AS r ON r.oid = pg_catalog.pg_partition_root(c.oid)
JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace
CROSS JOIN (SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS e (name)
WHERE c.relispartition AND c.relkind = 'r'
