-- How far an extension is there; $1 its name, $2 one of its functions.
SELECT a.default_version AS available,
       e.extversion AS created,
       quote_ident(n.nspname) AS schema,
       coalesce((SELECT bool_and(has_schema_privilege(n.oid, 'USAGE') AND has_function_privilege(f.oid, 'EXECUTE'))
                 FROM pg_catalog.pg_proc AS f
                 WHERE f.pronamespace = n.oid AND f.proname = %s), false) AS usable
FROM (VALUES (%s)) AS wanted (name)
LEFT JOIN pg_catalog.pg_available_extensions AS a ON a.name = wanted.name
LEFT JOIN pg_catalog.pg_extension AS e ON e.extname = wanted.name
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
