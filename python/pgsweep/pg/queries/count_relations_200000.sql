-- As count_relations of 14, but an index has its counters under functions of its own (72a6dad1c9): for it the older ones
-- return 0, as the new ones do for anything else. So the sum of both is right for either, without asking a catalog which it is.
SELECT o.oid::pg_catalog.int8::pg_catalog.text AS object,
       pg_catalog.pg_stat_get_blocks_fetched(o.oid) OPERATOR(pg_catalog.-) pg_catalog.pg_stat_get_blocks_hit(o.oid)
           OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_idx_blocks_fetched(o.oid)
           OPERATOR(pg_catalog.-) pg_catalog.pg_stat_get_idx_blocks_hit(o.oid) AS blks_read,
       pg_catalog.pg_stat_get_blocks_hit(o.oid) OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_idx_blocks_hit(o.oid) AS blks_hit,
       pg_catalog.pg_stat_get_numscans(o.oid) OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_idx_numscans(o.oid) AS scans,
       pg_catalog.pg_stat_get_tuples_returned(o.oid)
           OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_idx_tuples_returned(o.oid) AS tup_returned,
       pg_catalog.pg_stat_get_tuples_fetched(o.oid)
           OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_idx_tuples_fetched(o.oid) AS tup_fetched,
       pg_catalog.pg_stat_get_tuples_inserted(o.oid) AS tup_inserted,
       pg_catalog.pg_stat_get_tuples_updated(o.oid) AS tup_updated,
       pg_catalog.pg_stat_get_tuples_hot_updated(o.oid) AS tup_hot_updated,
       pg_catalog.pg_stat_get_tuples_deleted(o.oid) AS tup_deleted,
       pg_catalog.pg_stat_get_vacuum_count(o.oid) AS vacuum_count,
       pg_catalog.pg_stat_get_autovacuum_count(o.oid) AS autovacuum_count,
       pg_catalog.pg_stat_get_analyze_count(o.oid) AS analyze_count,
       pg_catalog.pg_stat_get_autoanalyze_count(o.oid) AS autoanalyze_count
FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS o (oid)
