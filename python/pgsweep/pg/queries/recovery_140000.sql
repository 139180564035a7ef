-- Whether the server replays the log, and by which process; null where the role may not see processes of the server's own.
SELECT pg_catalog.pg_is_in_recovery(),
       (SELECT a.pid FROM pg_catalog.pg_stat_activity AS a WHERE a.backend_type = 'startup')
