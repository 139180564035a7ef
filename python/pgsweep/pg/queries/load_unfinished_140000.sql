-- All unfinished loads of this database.
SELECT l.id::text, l.table_oid::int8, l.phase, l.document FROM {schema}.load AS l ORDER BY l.started_at
