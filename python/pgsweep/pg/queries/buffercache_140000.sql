-- Whether pg_buffercache is there and may be read by this role.
SELECT a.default_version IS NOT NULL AS available,
       pg_catalog.quote_ident(n.nspname) AS schema,
       pg_catalog.quote_ident(current_user) AS role,
       coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE')
                AND pg_catalog.has_table_privilege(v.oid, 'SELECT')
                AND (SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(f.oid, 'EXECUTE'))
                     FROM pg_catalog.pg_proc AS f
                     JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = f.oid
                          AND d.refclassid = 'pg_catalog.pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
                     WHERE f.proname = 'pg_buffercache_pages'), false) AS readable,
       pg_catalog.pg_has_role(current_user, 'pg_monitor', 'USAGE') AS monitor
FROM (VALUES ('pg_buffercache')) AS wanted (name)
LEFT JOIN pg_catalog.pg_available_extensions AS a ON a.name = wanted.name
LEFT JOIN pg_catalog.pg_extension AS e ON e.extname = wanted.name
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
LEFT JOIN pg_catalog.pg_class AS v ON v.relnamespace = n.oid AND v.relname = 'pg_buffercache'
