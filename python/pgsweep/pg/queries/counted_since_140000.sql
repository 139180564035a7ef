-- Since when this database's statistics count. From 15 on a database has no such time until it is reset: then they are no
-- older than those of the whole server, which begin anew with a new cluster and after a crash (pgstat_reset_after_failure).
SELECT (extract(epoch FROM coalesce(d.stats_reset, least(b.stats_reset, a.stats_reset))) * 1000000)::int8 AS since
FROM pg_catalog.pg_stat_database AS d, pg_catalog.pg_stat_bgwriter AS b, pg_catalog.pg_stat_archiver AS a
WHERE d.datname = pg_catalog.current_database()
