-- All used buffers, one row for each relation fork and state, and 128 GB of it: an array has at most 2^27 elements. Block and buffer share one number (block in the upper 32
-- bits), which makes 12 bytes a buffer on the wire and a quarter of the time that one row a buffer would take.
SELECT reltablespace::int8, reldatabase::int8, relfilenode::int8, relforknumber::int8,
       usagecount::int8, isdirty, pinning_backends > 0,
       pg_catalog.count(*) AS buffers,
       pg_catalog.array_agg((relblocknumber << 32) | bufferid) AS blocks
FROM {schema}.pg_buffercache
WHERE relfilenode IS NOT NULL
GROUP BY reltablespace, reldatabase, relfilenode, relforknumber, usagecount, isdirty, pinning_backends,
         relblocknumber >> 24
