-- Since when the buffer pool is in use, in microseconds since 2000-01-01. After a crash of a backend the postmaster stays, but
-- makes the pool anew and starts the checkpointer again (PostmasterStateMachine, postmaster.c). Roles that may not read when
-- the checkpointer started get the start of the postmaster.
SELECT ((extract(epoch FROM greatest(pg_catalog.pg_postmaster_start_time(), pg_catalog.max(a.backend_start))) - 946684800) * 1000000)::int8
FROM pg_catalog.pg_stat_activity AS a
WHERE a.backend_type OPERATOR(pg_catalog.=) 'checkpointer'
