-- How many standbys follow this server: walsenders but those of a backup and of logical replication.
SELECT pg_catalog.count(*)
FROM pg_catalog.pg_stat_replication AS r
WHERE r.state IS DISTINCT FROM 'backup'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
