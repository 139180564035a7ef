-- All unfinished loads of this database.
SELECT l.id::text, l.table_oid::int8, l.phase, l.document FROM pgsweep_load.load AS l ORDER BY l.started_at
