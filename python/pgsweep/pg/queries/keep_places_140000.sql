-- Where the kept relations lie now. A dropped one has no row. Reading a size waits for an ACCESS EXCLUSIVE lock of
-- others, so a relation under one comes without a size.
SELECT c.oid::int8,
       CASE WHEN c.relisshared THEN 0 ELSE d.oid END::int8 AS database_oid,
       CASE c.reltablespace WHEN 0 THEN d.dattablespace ELSE c.reltablespace END::int8 AS tablespace_oid,
       pg_catalog.pg_relation_filenode(c.oid)::int8 AS filenode,
       CASE WHEN l.locked IS NULL
            THEN pg_catalog.pg_relation_size(c.oid, 'main') / pg_catalog.current_setting('block_size')::int8 END AS blocks
FROM pg_catalog.unnest(%s::oid[]) AS o (oid)
JOIN pg_catalog.pg_class AS c ON c.oid = o.oid
JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
LEFT JOIN LATERAL (
    SELECT true AS locked FROM pg_catalog.pg_locks
    WHERE locktype = 'relation' AND relation = c.oid AND mode = 'AccessExclusiveLock' AND granted
    LIMIT 1) AS l ON true
