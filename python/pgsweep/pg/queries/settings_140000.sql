-- The settings that decide what the buffer pool, its rings and its observation do, in the units of pg_settings.
-- A setting that this version does not know has no row. One that was set for this session is as it was before.
SELECT name, CASE WHEN source = 'session' THEN reset_val ELSE setting END AS setting
FROM pg_catalog.pg_settings
WHERE name = ANY (ARRAY[
    'autovacuum', 'autovacuum_max_workers', 'autovacuum_naptime', 'autovacuum_worker_slots',
    'backend_flush_after', 'bgwriter_delay', 'bgwriter_lru_maxpages', 'bgwriter_lru_multiplier',
    'block_size', 'checkpoint_completion_target', 'checkpoint_timeout', 'debug_io_direct', 'dynamic_shared_memory_type',
    'effective_cache_size', 'effective_io_concurrency', 'hash_mem_multiplier', 'huge_pages', 'huge_pages_status',
    'in_hot_standby', 'io_combine_limit', 'io_max_combine_limit', 'io_max_concurrency', 'io_max_workers', 'io_method',
    'io_min_workers', 'io_workers',
    'maintenance_io_concurrency', 'maintenance_work_mem', 'max_connections', 'max_parallel_maintenance_workers',
    'max_parallel_workers_per_gather', 'max_wal_senders', 'max_wal_size', 'max_worker_processes',
    'min_dynamic_shared_memory', 'segment_size', 'server_encoding', 'shared_buffers',
    'shared_memory_type', 'shared_preload_libraries', 'stats_fetch_consistency', 'synchronize_seqscans', 'track_counts', 'track_io_timing',
    'vacuum_buffer_usage_limit', 'wal_buffers', 'work_mem'])
ORDER BY name
