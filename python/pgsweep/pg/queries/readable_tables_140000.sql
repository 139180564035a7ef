-- How many tables and materialized views of users this database has, and how many of them this role may read.
SELECT pg_catalog.count(*) AS tables,
       pg_catalog.count(*) FILTER (WHERE pg_catalog.has_table_privilege(c.oid, 'SELECT')) AS readable
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
