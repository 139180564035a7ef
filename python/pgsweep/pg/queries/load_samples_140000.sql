-- Tables of samples that were left by sessions that are gone.
SELECT c.relname::text AS name
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s::name AND c.relkind = 'r' AND pg_catalog.starts_with(c.relname::text, 'sample_')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE pg_catalog.split_part(c.relname::text, '_', 2) = a.pid::text)
