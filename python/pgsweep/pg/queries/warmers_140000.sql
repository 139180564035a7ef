-- Marks this session as one that warms, by a shared advisory lock that blocks nobody; returns how many other servers' processes carry the mark.
WITH marked AS MATERIALIZED (SELECT pg_catalog.pg_try_advisory_lock_shared(1885827959, 2002874989) AS taken)
SELECT pg_catalog.count(DISTINCT l.pid)
FROM marked
CROSS JOIN pg_catalog.pg_locks AS l
WHERE l.locktype = 'advisory' AND l.classid = 1885827959 AND l.objid = 2002874989 AND l.objsubid = 2
  AND l.pid <> pg_catalog.pg_backend_pid()
