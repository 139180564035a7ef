-- Transactions that are older than $1 seconds, without our own: what they read is counted when they are over. Each with when
-- it began, its statement where that is older (a procedure may commit), and since when it has been idle.
SELECT pid,
       extract(epoch FROM least(xact_start, CASE WHEN state = 'active' THEN query_start END))::float8 AS since,
       CASE WHEN state LIKE 'idle in transaction%%' THEN extract(epoch FROM state_change)::float8 END AS idle_since
FROM pg_catalog.pg_stat_activity
WHERE pid <> pg_catalog.pg_backend_pid() AND backend_type <> 'walsender'
  AND least(xact_start, CASE WHEN state = 'active' THEN query_start END)
      < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => %s::float8)
