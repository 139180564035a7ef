-- Settings that are fixed when the server starts and were given by somebody: all that shared memory is sized by, in the units of
-- pg_settings. What the server computes itself (wal_buffers = -1) has the source of a default, or override, and is left out.
SELECT name, setting
FROM pg_catalog.pg_settings
WHERE context = 'postmaster'
  -- The two that initdb writes into postgresql.conf differ from the defaults that a server without them has.
  AND (source NOT IN ('default', 'dynamic default', 'override') OR name IN ('shared_buffers', 'max_connections'))
  AND name <> ALL (ARRAY[
    -- Where the server lies, whom it listens to, how it recovers, what it logs: nothing of it takes shared memory.
    'config_file', 'data_directory', 'hba_file', 'ident_file', 'external_pid_file', 'hosts_file',
    'listen_addresses', 'port', 'unix_socket_directories', 'unix_socket_group', 'unix_socket_permissions', 'bonjour',
    'bonjour_name', 'cluster_name', 'event_source', 'logging_collector', 'archive_mode', 'wal_level', 'hot_standby',
    'recovery_target', 'recovery_target_action', 'recovery_target_inclusive', 'recovery_target_lsn', 'recovery_target_name',
    'recovery_target_time', 'recovery_target_timeline', 'recovery_target_xid', 'dynamic_shared_memory_type',
    'summarize_wal', 'huge_pages', 'huge_page_size', 'shared_memory_type', 'jit_provider', 'debug_io_direct'])
ORDER BY name
