-- Claims a server's history for this session by an advisory lock that waits for nobody; where another session has it, its
-- process, and the address of its client.
SELECT pg_catalog.pg_try_advisory_lock(%(key)s::int8) AS ours, held.pid, held.client
FROM (VALUES (1)) AS one
LEFT JOIN (
    SELECT l.pid, pg_catalog.host(a.client_addr) AS client
    FROM pg_catalog.pg_locks AS l
    LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.classid = %(high)s::oid AND l.objid = %(low)s::oid
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
    LIMIT 1
) AS held ON true
