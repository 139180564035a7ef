-- The pool by relation fork: buffers at usage_count 0 to 5, dirty and pinned ones. One row a fork, so little is sent.
SELECT reltablespace::int8, reldatabase::int8, relfilenode::int8,
       pg_catalog.count(*) FILTER (WHERE usagecount = 0),
       pg_catalog.count(*) FILTER (WHERE usagecount = 1),
       pg_catalog.count(*) FILTER (WHERE usagecount = 2),
       pg_catalog.count(*) FILTER (WHERE usagecount = 3),
       pg_catalog.count(*) FILTER (WHERE usagecount = 4),
       pg_catalog.count(*) FILTER (WHERE usagecount >= 5),
       pg_catalog.count(*) FILTER (WHERE isdirty),
       pg_catalog.count(*) FILTER (WHERE pinning_backends > 0)
FROM {schema}.pg_buffercache
WHERE relfilenode IS NOT NULL
GROUP BY reltablespace, reldatabase, relfilenode
