-- How often pg_stat_statements was full and gave up its least executed entries, and how many it holds.
SELECT i.dealloc::pg_catalog.int8 AS times, pg_catalog.current_setting('pg_stat_statements.max') AS most
FROM {schema}.pg_stat_statements_info() AS i
