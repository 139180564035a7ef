-- What a sort of this session may take in memory, in bytes.
SELECT pg_catalog.pg_size_bytes(pg_catalog.current_setting('work_mem')) AS work_memory_bytes
