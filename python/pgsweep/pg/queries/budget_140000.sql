-- The settings that decide how much memory the server may take, in bytes where they have a unit. One that this version does not know has no row.
SELECT name,
       CASE unit WHEN 'B' THEN setting::numeric
                 WHEN 'kB' THEN setting::numeric * 1024
                 WHEN 'MB' THEN setting::numeric * 1048576
                 -- Blocks: 8kB, or what the server was built with.
                 ELSE setting::numeric * coalesce(pg_catalog.substring(unit, '^([0-9]+)kB$')::numeric * 1024, 1) END::float8 AS value
FROM pg_catalog.pg_settings
WHERE name = ANY (ARRAY[
    'autovacuum_max_workers', 'autovacuum_work_mem', 'hash_mem_multiplier', 'logical_decoding_work_mem', 'maintenance_work_mem',
    'max_connections', 'max_parallel_workers', 'shared_buffers', 'shared_memory_size', 'temp_buffers', 'work_mem'])
UNION ALL
SELECT 'logical slots', pg_catalog.count(*)::float8
FROM pg_catalog.pg_replication_slots
WHERE slot_type = 'logical'
