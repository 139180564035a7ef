-- The process of a session that has claimed a table for a load.
SELECT l.pid
FROM pg_catalog.pg_locks AS l
WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
  AND l.classid = %(kind)s::int8::oid AND l.objid = %(oid)s::oid
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
LIMIT 1
