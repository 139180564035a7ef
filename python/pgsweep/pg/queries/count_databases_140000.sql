-- Cumulative counters of databases, without touching a catalog.
SELECT o.oid::int8::text AS object,
       pg_catalog.pg_stat_get_db_xact_commit(o.oid) AS xact_commit,
       pg_catalog.pg_stat_get_db_xact_rollback(o.oid) AS xact_rollback,
       pg_catalog.pg_stat_get_db_blocks_fetched(o.oid) - pg_catalog.pg_stat_get_db_blocks_hit(o.oid) AS blks_read,
       pg_catalog.pg_stat_get_db_blocks_hit(o.oid) AS blks_hit,
       pg_catalog.pg_stat_get_db_tuples_returned(o.oid) AS tup_returned,
       pg_catalog.pg_stat_get_db_tuples_fetched(o.oid) AS tup_fetched,
       pg_catalog.pg_stat_get_db_tuples_inserted(o.oid) AS tup_inserted,
       pg_catalog.pg_stat_get_db_tuples_updated(o.oid) AS tup_updated,
       pg_catalog.pg_stat_get_db_tuples_deleted(o.oid) AS tup_deleted,
       pg_catalog.pg_stat_get_db_temp_files(o.oid) AS temp_files,
       pg_catalog.pg_stat_get_db_temp_bytes(o.oid) AS temp_bytes,
       pg_catalog.pg_stat_get_db_blk_read_time(o.oid) AS blk_read_time,
       pg_catalog.pg_stat_get_db_blk_write_time(o.oid) AS blk_write_time,
       pg_catalog.pg_stat_get_db_session_time(o.oid) AS session_time,
       pg_catalog.pg_stat_get_db_active_time(o.oid) AS active_time
FROM pg_catalog.unnest(%s::oid[]) AS o (oid)
