-- Other sessions that hold a lock on a table.
SELECT DISTINCT l.pid::int8, a.state
FROM pg_catalog.pg_locks AS l
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = %(oid)s::oid AND l.granted AND l.pid IS NOT NULL
  AND l.pid <> pg_catalog.pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
ORDER BY 1 LIMIT 5
