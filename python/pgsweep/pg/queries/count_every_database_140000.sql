-- Counters of buffers and transactions of the databases that there are at this moment, and of what belongs to all of them;
-- the time, and since when the server's statistics count, in microseconds since 2000-01-01. They are kept over an orderly
-- restart, and begin anew after a crash; a reset of one kind of them is not taken for a beginning of all.
SELECT d.oid::int8,
       pg_catalog.pg_stat_get_db_xact_commit(d.oid) + pg_catalog.pg_stat_get_db_xact_rollback(d.oid) AS transactions,
       pg_catalog.pg_stat_get_db_blocks_fetched(d.oid) AS fetched,
       pg_catalog.pg_stat_get_db_blocks_hit(d.oid) AS hits,
       pg_catalog.current_setting('track_counts')::bool AS counted,
       ((extract(epoch FROM pg_catalog.clock_timestamp()) - 946684800) * 1000000)::int8 AS now,
       ((extract(epoch FROM least(pg_catalog.pg_stat_get_bgwriter_stat_reset_time(), a.stats_reset)) - 946684800) * 1000000)::int8
           AS since
FROM (SELECT 0::oid AS oid UNION ALL SELECT oid FROM pg_catalog.pg_database) AS d,
     pg_catalog.pg_stat_get_archiver() AS a
