-- Indexes that a query has used since statistics began, how often, and whether they are B-trees (BTREE_AM_OID,
-- catalog/pg_am.dat). Their metapage is read by planning alone.
SELECT s.indexrelid::int8 AS oid, s.idx_scan AS scans, c.relam = 403::oid AS btree
FROM pg_catalog.pg_stat_all_indexes AS s
JOIN pg_catalog.pg_class AS c ON c.oid = s.indexrelid
WHERE s.idx_scan > 0
