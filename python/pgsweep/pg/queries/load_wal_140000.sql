-- Where the server's log of changes ends, in bytes.
SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0')::int8 AS position
