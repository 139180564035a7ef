-- How long the postmaster has been running, by the server's own clock.
SELECT extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())::float8 AS seconds
