-- What a relation that was named is by now: the one of that name, for it may have been made anew; else the one that had it.
SELECT c.oid::int8,
       pg_catalog.convert_to(n.nspname::text, e.name) AS schema,
       pg_catalog.convert_to(c.relname::text, e.name) AS name
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN (SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS e (name)
WHERE c.oid = %(oid)s::oid OR n.nspname = %(schema)s::text AND c.relname = %(name)s::text
ORDER BY n.nspname = %(schema)s::text AND c.relname = %(name)s::text DESC NULLS LAST
LIMIT 1
