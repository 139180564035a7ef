-- As snapshot, but only the blocks of the files asked for are sent. Counts are of all buffers.
SELECT reltablespace::int8, reldatabase::int8, relfilenode::int8, relforknumber::int8,
       usagecount::int8, isdirty, pinning_backends > 0,
       pg_catalog.count(*) AS buffers,
       pg_catalog.array_agg((relblocknumber << 32) | bufferid) FILTER (WHERE relfilenode = ANY ({filenodes}::oid[])) AS blocks
FROM {schema}.pg_buffercache
WHERE relfilenode IS NOT NULL
GROUP BY reltablespace, reldatabase, relfilenode, relforknumber, usagecount, isdirty, pinning_backends,
         relblocknumber >> 24
