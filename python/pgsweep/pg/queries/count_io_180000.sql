-- pg_stat_io of 18 and later: reads, writes and extends are operations, of several blocks each.
SELECT pg_catalog.concat_ws('/', backend_type, object, context) AS object,
       reads, read_bytes, read_time,
       writes, write_bytes, write_time,
       extends, extend_bytes, extend_time,
       hits, evictions, reuses, writebacks, fsyncs
FROM pg_catalog.pg_stat_io
WHERE object <> 'wal'
