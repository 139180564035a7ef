-- Other sessions that hold a lock on a table; those of loads of this table, which share an advisory lock, come last.
SELECT held.pid, held.state, held.own
FROM (
    SELECT DISTINCT l.pid::int8 AS pid, a.state,
           EXISTS (SELECT FROM pg_catalog.pg_locks AS w
                   WHERE w.pid = l.pid AND w.locktype = 'advisory' AND w.objsubid = 2 AND w.granted
                     AND w.classid = %(work)s::int8::oid AND w.objid = l.relation AND w.database = l.database) AS own
    FROM pg_catalog.pg_locks AS l
    LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.relation = %(oid)s::oid AND l.granted AND l.pid IS NOT NULL
      AND l.pid <> pg_catalog.pg_backend_pid()
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
) AS held
ORDER BY held.own, held.pid LIMIT 5
