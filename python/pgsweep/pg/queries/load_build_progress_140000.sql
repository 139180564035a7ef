-- How far the index builds on a table are, in each session.
SELECT p.pid::int8, p.phase, p.blocks_done, p.blocks_total, p.tuples_done, p.tuples_total
FROM pg_catalog.pg_stat_progress_create_index AS p WHERE p.relid = %(oid)s::oid
