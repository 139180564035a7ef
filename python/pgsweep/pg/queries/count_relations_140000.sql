-- Cumulative counters of relations of this database, without touching a catalog. For an index, scans and tuples are
-- idx_scan, idx_tup_read and idx_tup_fetch; for a table, seq_scan, seq_tup_read and the tuples fetched by its indexes.
SELECT o.oid::int8::text AS object,
       pg_catalog.pg_stat_get_blocks_fetched(o.oid) - pg_catalog.pg_stat_get_blocks_hit(o.oid) AS blks_read,
       pg_catalog.pg_stat_get_blocks_hit(o.oid) AS blks_hit,
       pg_catalog.pg_stat_get_numscans(o.oid) AS scans,
       pg_catalog.pg_stat_get_tuples_returned(o.oid) AS tup_returned,
       pg_catalog.pg_stat_get_tuples_fetched(o.oid) AS tup_fetched,
       pg_catalog.pg_stat_get_tuples_inserted(o.oid) AS tup_inserted,
       pg_catalog.pg_stat_get_tuples_updated(o.oid) AS tup_updated,
       pg_catalog.pg_stat_get_tuples_hot_updated(o.oid) AS tup_hot_updated,
       pg_catalog.pg_stat_get_tuples_deleted(o.oid) AS tup_deleted,
       pg_catalog.pg_stat_get_vacuum_count(o.oid) AS vacuum_count,
       pg_catalog.pg_stat_get_autovacuum_count(o.oid) AS autovacuum_count,
       pg_catalog.pg_stat_get_analyze_count(o.oid) AS analyze_count,
       pg_catalog.pg_stat_get_autoanalyze_count(o.oid) AS autoanalyze_count
FROM pg_catalog.unnest(%s::oid[]) AS o (oid)
