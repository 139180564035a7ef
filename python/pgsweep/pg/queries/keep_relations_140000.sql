-- The relations that one relation stands for, with their files: a table, an index, the partitions of either; on request the
-- indexes and the TOAST relations of the tables among them. What has no storage of its own comes without a file.
-- TOAST relations and their indexes come with the name of the table that they serve. An index that is not valid is being built,
-- or was replaced (REINDEX CONCURRENTLY): no plan uses it.
WITH named AS MATERIALIZED (
    SELECT coalesce(p.relid, n.oid)::oid AS oid
    FROM (SELECT %(oid)s::oid AS oid) AS n
    LEFT JOIN LATERAL pg_catalog.pg_partition_tree(n.oid) AS p ON true
), toast AS MATERIALIZED (
    SELECT c.reltoastrelid AS oid
    FROM named JOIN pg_catalog.pg_class AS c ON c.oid = named.oid
    WHERE %(toast)s AND c.reltoastrelid <> 0
), chosen AS (
    SELECT oid FROM named
    UNION SELECT oid FROM toast
    UNION SELECT i.indexrelid FROM pg_catalog.pg_index AS i JOIN toast ON i.indrelid = toast.oid
    UNION SELECT i.indexrelid FROM pg_catalog.pg_index AS i JOIN named ON i.indrelid = named.oid WHERE %(indexes)s AND i.indisvalid
)
SELECT c.oid::int8,
       pg_catalog.convert_to(n.nspname::text, e.name) AS schema,
       pg_catalog.convert_to(c.relname::text, e.name) AS name,
       c.relkind::text AS kind,
       c.relpersistence = 't' AS temporary,
       pg_catalog.pg_relation_filenode(c.oid)::int8 AS filenode,
       pg_catalog.convert_to(coalesce(sn.nspname::text, ''), e.name) AS table_schema,
       pg_catalog.convert_to(coalesce(served.relname::text, ''), e.name) AS table_name
FROM chosen
JOIN pg_catalog.pg_class AS c ON c.oid = chosen.oid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index AS i ON i.indexrelid = c.oid
LEFT JOIN pg_catalog.pg_class AS served ON n.nspname = 'pg_toast' AND served.reltoastrelid = coalesce(i.indrelid, c.oid)
LEFT JOIN pg_catalog.pg_namespace AS sn ON sn.oid = served.relnamespace
CROSS JOIN (SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS e (name)
ORDER BY c.oid
