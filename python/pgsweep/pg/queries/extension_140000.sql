-- How far an extension is there; $1 one of its functions, $2 its name.
SELECT a.default_version AS available,
       e.extversion AS created,
       pg_catalog.quote_ident(n.nspname) AS schema,
       coalesce((SELECT pg_catalog.bool_and(pg_catalog.has_schema_privilege(n.oid, 'USAGE')
                                            AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE'))
                 FROM pg_catalog.pg_proc AS f
                 JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = f.oid
                      AND d.refclassid = 'pg_catalog.pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
                 WHERE f.proname = %s), false) AS usable
FROM (VALUES (%s)) AS wanted (name)
LEFT JOIN pg_catalog.pg_available_extensions AS a ON a.name = wanted.name
LEFT JOIN pg_catalog.pg_extension AS e ON e.extname = wanted.name
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
