-- Whether there is a schema for the history of `serve` in this database, and whether it and its tables are ours or a superuser's.
SELECT n.oid IS NOT NULL AS has_schema,
       coalesce((SELECT pg_catalog.bool_and(o.owner = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)
                                            OR EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = o.owner AND r.rolsuper))
                 FROM (SELECT n.nspowner AS owner UNION SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE c.relnamespace = n.oid) AS o),
                true) AS trusted,
       pg_catalog.convert_to(coalesce(pg_catalog.pg_get_userbyid(n.nspowner)::text, ''), 'UTF8') AS owner
FROM (SELECT 'pgsweep_history'::name AS name) AS wanted
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = wanted.name
