-- Every relation of this database that has storage, with the file it lies in. Mapped and shared catalogs have no
-- relfilenode in pg_class, so the file is asked for. No lock is taken on any of them.
SELECT c.oid::int8 AS oid,
       pg_catalog.convert_to(n.nspname::text, e.name) AS schema,
       pg_catalog.convert_to(c.relname::text, e.name) AS name,
       c.relkind::text AS kind,
       CASE WHEN c.relisshared THEN 0 ELSE d.oid END::int8 AS database_oid,
       CASE c.reltablespace WHEN 0 THEN d.dattablespace ELSE c.reltablespace END::int8 AS tablespace_oid,
       pg_catalog.pg_relation_filenode(c.oid)::int8 AS filenode,
       coalesce(owner.oid, i.indrelid, c.oid)::int8 AS table_oid,
       c.relpages::int8 AS pages_estimate,
       CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples / c.relpages ELSE 0 END::float8 AS tuples_per_block
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
CROSS JOIN (SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS e (name)
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index AS i ON i.indexrelid = c.oid
LEFT JOIN pg_catalog.pg_class AS owner ON owner.reltoastrelid = coalesce(i.indrelid, c.oid) AND owner.reltoastrelid <> 0
WHERE c.relkind IN ('r', 'i', 't', 'm', 'S')
  AND c.relpersistence <> 't'
  AND pg_catalog.pg_relation_filenode(c.oid) IS NOT NULL
ORDER BY c.oid
