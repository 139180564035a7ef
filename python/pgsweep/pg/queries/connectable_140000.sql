-- All databases, whether they take connections, whether this role may connect, and whether they are templates of others.
SELECT oid::int8,
       pg_catalog.convert_to(datname::text, CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END),
       datallowconn,
       pg_catalog.has_database_privilege(oid, 'CONNECT'),
       datistemplate
FROM pg_catalog.pg_database
ORDER BY oid
