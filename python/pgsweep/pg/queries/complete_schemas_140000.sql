-- Schemas that begin like $1; $2 at most.
SELECT pg_catalog.convert_to(n.nspname::text, CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)
           AS name
FROM pg_catalog.pg_namespace AS n
WHERE pg_catalog.starts_with(n.nspname::text, %s::text)
ORDER BY pg_catalog.starts_with(n.nspname::text, 'pg_'), n.nspname
LIMIT %s::int8
