-- Counters of buffers and transactions of the databases that there are at this moment, and of what belongs to all of them.
SELECT d.oid::int8,
       pg_catalog.pg_stat_get_db_xact_commit(d.oid) + pg_catalog.pg_stat_get_db_xact_rollback(d.oid) AS transactions,
       pg_catalog.pg_stat_get_db_blocks_fetched(d.oid) AS fetched,
       pg_catalog.pg_stat_get_db_blocks_hit(d.oid) AS hits,
       pg_catalog.current_setting('track_counts')::bool AS counted
FROM (SELECT 0::oid AS oid UNION ALL SELECT oid FROM pg_catalog.pg_database) AS d
