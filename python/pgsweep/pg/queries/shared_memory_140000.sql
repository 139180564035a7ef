-- What is known of the shared memory without asking for its parts; sizes in bytes, huge_page_size 0 is the kernel's default.
SELECT (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'huge_pages') AS huge_pages,
       pg_catalog.current_setting('huge_pages_status', true) AS huge_pages_status,
       (SELECT setting::int8 * 1024 FROM pg_catalog.pg_settings WHERE name = 'huge_page_size') AS huge_page_bytes,
       pg_catalog.current_setting('shared_memory_type') AS shared_memory_type,
       pg_catalog.current_setting('shared_memory_size_in_huge_pages', true)::int8 AS server_pages,
       pg_catalog.current_setting('max_connections')::int4 AS max_connections,
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')) AS wal_segment_bytes,
       pg_catalog.inet_server_addr() IS NULL AS by_socket,
       pg_catalog.has_table_privilege('pg_catalog.pg_shmem_allocations', 'SELECT')
           AND pg_catalog.has_function_privilege('pg_catalog.pg_get_shmem_allocations()', 'EXECUTE') AS may_sum,
       pg_catalog.pg_has_role(current_user, 'pg_read_all_settings', 'USAGE') AS sees_all_settings
