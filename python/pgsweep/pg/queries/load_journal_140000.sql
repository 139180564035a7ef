-- The journals of loads in this database, each a schema, and whether the session's role may rely on it: all in it is
-- its own, or of superusers where it is one itself.
SELECT me.oid::int8 AS role, me.rolsuper AS is_superuser, n.nspname::text AS name,
       coalesce((SELECT pg_catalog.bool_and(o.owner = me.oid
                                            OR (me.rolsuper AND EXISTS (SELECT FROM pg_catalog.pg_roles AS r
                                                                        WHERE r.oid = o.owner AND r.rolsuper)))
                 FROM (SELECT n.nspowner AS owner UNION SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE c.relnamespace = n.oid) AS o),
                true) AS trusted,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND c.relname IN ('load', 'object', 'piece', 'reject', 'alive')) AS tables,
       pg_catalog.convert_to(coalesce(pg_catalog.pg_get_userbyid(n.nspowner)::text, ''), 'UTF8') AS owner
FROM pg_catalog.pg_roles AS me
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname ~ '^pgsweep_load(_[0-9]+)?$'
WHERE me.rolname = current_user
ORDER BY n.nspname
