-- Evict one relation's buffers, all forks; what is pinned stays. ($2 and $3, its database and tablespace, are for earlier versions.)
SELECT e.buffers_evicted::pg_catalog.int8 AS evicted, e.buffers_skipped::pg_catalog.int8 AS kept
FROM {schema}.pg_buffercache_evict_relation(%s::pg_catalog.oid::pg_catalog.regclass) AS e
WHERE %s::pg_catalog.oid IS NOT NULL AND %s::pg_catalog.oid IS NOT NULL
