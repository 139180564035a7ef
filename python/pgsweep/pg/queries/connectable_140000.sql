-- All databases, whether they take connections, and whether this role may connect.
SELECT oid::int8,
       pg_catalog.convert_to(datname::text, CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END),
       datallowconn,
       pg_catalog.has_database_privilege(oid, 'CONNECT')
FROM pg_catalog.pg_database
ORDER BY oid
