-- Blocks per fork of the relations asked for. Reading a size waits for an ACCESS EXCLUSIVE lock of others, also for one
-- that is waited for itself, so such relations are left out.
SELECT o.oid::int8,
       pg_catalog.pg_relation_size(o.oid::regclass, 'main') / pg_catalog.current_setting('block_size')::int8,
       pg_catalog.pg_relation_size(o.oid::regclass, 'fsm') / pg_catalog.current_setting('block_size')::int8,
       pg_catalog.pg_relation_size(o.oid::regclass, 'vm') / pg_catalog.current_setting('block_size')::int8
FROM pg_catalog.unnest(%s::oid[]) AS o (oid)
WHERE NOT EXISTS (
    SELECT FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'relation' AND l.relation = o.oid AND l.mode = 'AccessExclusiveLock')
