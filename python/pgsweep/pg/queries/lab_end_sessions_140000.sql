-- Ends the sessions of an application; one row each. Those of a run that was killed may still be there.
SELECT a.pid, pg_catalog.pg_terminate_backend(a.pid)
FROM pg_catalog.pg_stat_activity AS a
WHERE a.application_name = %s AND a.pid <> pg_catalog.pg_backend_pid()
