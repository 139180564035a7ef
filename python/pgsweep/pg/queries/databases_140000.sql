-- All databases, and 0 for what belongs to all of them (shared catalogs).
SELECT 0::int8 AS oid, ''::bytea AS name
UNION ALL
SELECT oid::int8, pg_catalog.convert_to(datname::text, CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)
FROM pg_catalog.pg_database
ORDER BY oid
