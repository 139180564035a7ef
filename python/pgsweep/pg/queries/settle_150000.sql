-- Have this session's own counters sent with the end of this statement, so that they do not appear later.
SELECT pg_catalog.pg_stat_force_next_flush()
