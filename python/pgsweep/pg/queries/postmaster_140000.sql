-- This session's process, and when the postmaster started, in microseconds since 2000-01-01 as the server itself keeps it.
SELECT pg_catalog.pg_backend_pid() AS backend_pid,
       ((extract(epoch FROM pg_catalog.pg_postmaster_start_time()) - 946684800) * 1000000)::int8 AS start_time
