-- Of the server itself, as far as any role may ask: its data directory, as the bytes that it is (null without
-- pg_read_all_settings), and its timeline (null on a standby, which follows that of its primary). Then, whether the role may
-- ask for more: a statement that is refused would stand in the server's log.
SELECT (SELECT pg_catalog.convert_to(s.setting, pg_catalog.getdatabaseencoding())
        FROM pg_catalog.pg_settings AS s
        WHERE s.name OPERATOR(pg_catalog.=) 'data_directory') AS data_directory,
       CASE WHEN NOT pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8)
       END AS timeline,
       pg_catalog.has_function_privilege('pg_catalog.pg_stat_file(text)', 'EXECUTE') AS may_ask_age,
       pg_catalog.has_function_privilege('pg_catalog.pg_read_file(text, bigint, bigint, boolean)', 'EXECUTE') AS may_ask_host
