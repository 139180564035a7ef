-- One relation, with the file it lies in; of a TOAST relation or its index the table that it serves.
SELECT c.oid::int8,
       pg_catalog.convert_to(n.nspname::text, e.name) AS schema,
       pg_catalog.convert_to(c.relname::text, e.name) AS name,
       CASE WHEN c.relisshared THEN 0 ELSE d.oid END::int8 AS database_oid,
       CASE c.reltablespace WHEN 0 THEN d.dattablespace ELSE c.reltablespace END::int8 AS tablespace_oid,
       pg_catalog.pg_relation_filenode(c.oid)::int8 AS filenode,
       pg_catalog.pg_relation_size(c.oid, 'main') / pg_catalog.current_setting('block_size')::int8 AS blocks,
       pg_catalog.convert_to(coalesce(sn.nspname::text, ''), e.name) AS table_schema,
       pg_catalog.convert_to(coalesce(served.relname::text, ''), e.name) AS table_name
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
LEFT JOIN pg_catalog.pg_index AS i ON i.indexrelid = c.oid
LEFT JOIN pg_catalog.pg_class AS served ON n.nspname = 'pg_toast' AND served.reltoastrelid = coalesce(i.indrelid, c.oid)
LEFT JOIN pg_catalog.pg_namespace AS sn ON sn.oid = served.relnamespace
CROSS JOIN (SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS e (name)
WHERE c.oid = %s::oid
