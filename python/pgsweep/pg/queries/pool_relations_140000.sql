-- The pool by relation fork: buffers at usage_count 0 to 5, dirty and pinned ones. One row a fork, so little is sent.
SELECT reltablespace::int8, reldatabase::int8, relfilenode::int8,
       count(*) FILTER (WHERE usagecount = 0),
       count(*) FILTER (WHERE usagecount = 1),
       count(*) FILTER (WHERE usagecount = 2),
       count(*) FILTER (WHERE usagecount = 3),
       count(*) FILTER (WHERE usagecount = 4),
       count(*) FILTER (WHERE usagecount >= 5),
       count(*) FILTER (WHERE isdirty),
       count(*) FILTER (WHERE pinning_backends > 0)
FROM {schema}.pg_buffercache
WHERE relfilenode IS NOT NULL
GROUP BY reltablespace, reldatabase, relfilenode
