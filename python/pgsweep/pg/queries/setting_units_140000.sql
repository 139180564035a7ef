-- The unit of each of these settings (null where it has none), and whether it takes effect at a restart only.
SELECT name, unit, context = 'postmaster'
FROM pg_catalog.pg_settings
WHERE name = ANY (%s::text[])
ORDER BY name
