-- Whether pg_buffercache is there and may be read by this role.
SELECT a.default_version IS NOT NULL AS available,
       quote_ident(n.nspname) AS schema,
       quote_ident(current_user) AS role,
       coalesce(has_schema_privilege(n.oid, 'USAGE')
                AND has_table_privilege(v.oid, 'SELECT')
                AND has_function_privilege(f.oid, 'EXECUTE'), false) AS readable,
       pg_has_role(current_user, 'pg_monitor', 'USAGE') AS monitor
FROM (VALUES ('pg_buffercache')) AS wanted (name)
LEFT JOIN pg_catalog.pg_available_extensions AS a ON a.name = wanted.name
LEFT JOIN pg_catalog.pg_extension AS e ON e.extname = wanted.name
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
LEFT JOIN pg_catalog.pg_class AS v ON v.relnamespace = n.oid AND v.relname = 'pg_buffercache'
LEFT JOIN pg_catalog.pg_proc AS f ON f.pronamespace = n.oid AND f.proname = 'pg_buffercache_pages'
