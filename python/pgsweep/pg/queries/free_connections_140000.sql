-- How many more connections the server takes that it does not reserve for some roles.
SELECT GREATEST(0,
    pg_catalog.current_setting('max_connections')::int8
    - pg_catalog.current_setting('superuser_reserved_connections')::int8
    - COALESCE(pg_catalog.current_setting('reserved_connections', true), '0')::int8
    - (SELECT COALESCE(pg_catalog.sum(numbackends), 0)::int8 FROM pg_catalog.pg_stat_database))
