-- pg_stat_io of 16 and 17: reads, writes and extends are blocks.
SELECT pg_catalog.concat_ws('/', backend_type, object, context) AS object,
       reads, reads * op_bytes AS read_bytes, read_time,
       writes, writes * op_bytes AS write_bytes, write_time,
       extends, extends * op_bytes AS extend_bytes, extend_time,
       hits, evictions, reuses, writebacks, fsyncs
FROM pg_catalog.pg_stat_io
