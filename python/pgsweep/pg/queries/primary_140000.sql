-- Where a standby has its WAL from: what is to be created here must be created there. Needs pg_read_all_stats.
SELECT sender_host, sender_port FROM pg_catalog.pg_stat_wal_receiver
