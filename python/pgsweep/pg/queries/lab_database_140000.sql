-- Whether there is a database of this name, and the comment on it.
SELECT pg_catalog.convert_to(COALESCE(pg_catalog.shobj_description(d.oid, 'pg_database'), ''),
                             CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)
FROM pg_catalog.pg_database AS d
WHERE d.datname = %s
