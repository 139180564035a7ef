-- Claims a table for one load: an advisory lock that waits for nobody; where another session has it, its process.
SELECT pg_catalog.pg_try_advisory_lock(%(kind)s::int4, %(object)s::int4) AS ours,
       (SELECT l.pid FROM pg_catalog.pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
          AND l.classid = %(kind)s::int8::oid AND l.objid = %(oid)s::oid
          AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
        LIMIT 1) AS holder
