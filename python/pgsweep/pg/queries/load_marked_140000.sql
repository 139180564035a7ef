-- The schemas in which a load of a table is marked as begun, and their owners: superusers, and roles that may insert
-- into the table. Names in the catalog alone are read, because the tables are those of others.
SELECT n.nspname::text AS name, pg_catalog.convert_to(pg_catalog.pg_get_userbyid(n.nspowner)::text, 'UTF8') AS owner
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_roles AS r ON r.oid = n.nspowner
WHERE n.nspname ~ '^pgsweep_load(_[0-9]+)?$' AND c.relkind = 'r'
  AND c.relname = ('of_' || (%(oid)s::oid)::text)::name
  AND EXISTS (SELECT FROM pg_catalog.pg_class AS l WHERE l.relnamespace = n.oid AND l.relkind = 'r' AND l.relname = 'load')
  AND (r.rolsuper OR coalesce(pg_catalog.has_any_column_privilege(r.oid, %(oid)s::oid, 'INSERT'), false))
ORDER BY n.nspname
