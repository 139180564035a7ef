-- Where the values in force come from: a setting of postgresql.auto.conf counts unless something else overrides it.
SELECT s.name, s.source, s.pending_restart
FROM pg_catalog.pg_settings AS s
WHERE s.name = ANY (%s::text[])
