-- For how long the server has run, and for how long its statistics have counted: they begin anew after a crash
-- (pgstat_reset_after_failure). And whether a database is still there.
SELECT extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())::float8 AS up_seconds,
       extract(epoch FROM pg_catalog.clock_timestamp() - least(b.stats_reset, a.stats_reset))::float8 AS counted_seconds,
       EXISTS (SELECT FROM pg_catalog.pg_database AS d WHERE d.oid OPERATOR(pg_catalog.=) %(oid)s) AS has_database
FROM pg_catalog.pg_stat_bgwriter AS b, pg_catalog.pg_stat_archiver AS a
