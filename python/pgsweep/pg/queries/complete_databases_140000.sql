-- Databases that this role may connect to and that begin like $1; $2 at most.
SELECT pg_catalog.convert_to(d.datname::text, CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)
           AS name
FROM pg_catalog.pg_database AS d
WHERE d.datallowconn AND pg_catalog.has_database_privilege(d.oid, 'CONNECT')
  AND pg_catalog.starts_with(d.datname::text, %s::text)
ORDER BY d.datname
LIMIT %s::int8
