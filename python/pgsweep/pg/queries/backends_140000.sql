-- Client backends by state and wait event, without our own. Of sessions that the role may not see all is null but the
-- process, the role and the database; they are counted too. Processes of the server itself have no database.
SELECT state, wait_event_type, wait_event, pg_catalog.count(*)
FROM pg_catalog.pg_stat_activity
WHERE pid <> pg_catalog.pg_backend_pid()
  AND (backend_type = 'client backend' OR backend_type IS NULL AND datid IS NOT NULL)
GROUP BY state, wait_event_type, wait_event
