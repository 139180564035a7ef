-- The table that is loaded, and what of server, role and replication bears on how it may be loaded.
SELECT c.oid::int8,
       pg_catalog.convert_to(n.nspname::text, 'UTF8') AS schema,
       pg_catalog.convert_to(c.relname::text, 'UTF8') AS name,
       pg_catalog.convert_to(pg_catalog.format('%%I.%%I', n.nspname, c.relname), 'UTF8') AS quoted,
       c.relkind::text AS kind,
       CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) AS p
                         JOIN pg_catalog.pg_class AS l ON l.oid = p.relid::oid WHERE p.isleaf AND l.relpersistence = 'u')
            THEN 'u' ELSE c.relpersistence::text END AS persistence,
       pg_catalog.convert_to(pg_catalog.pg_get_userbyid(c.relowner)::text, 'UTF8') AS owner,
       pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owned,
       pg_catalog.has_any_column_privilege(c.oid, 'INSERT') AS may_insert,
       pg_catalog.has_table_privilege(c.oid, 'INSERT') AS may_lock,
       pg_catalog.has_table_privilege(c.oid, 'DELETE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS may_undo,
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS may_create,
       c.relrowsecurity AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(c.relowner, 'USAGE'))
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r
                           WHERE r.rolname = current_user AND (r.rolsuper OR r.rolbypassrls)) AS row_security,
       c.relispartition AS is_partition,
       EXISTS (SELECT FROM pg_catalog.pg_publication_tables AS t
               WHERE t.schemaname = n.nspname AND t.tablename = c.relname)
           OR c.relkind = 'p' AND (EXISTS (SELECT FROM pg_catalog.pg_publication AS p WHERE p.puballtables)
               OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel AS r
                          WHERE r.prrelid IN (SELECT a.relid::oid FROM pg_catalog.pg_partition_ancestors(c.oid) AS a))
               OR EXISTS (SELECT FROM pg_catalog.pg_publication_tables AS t
                          JOIN pg_catalog.pg_namespace AS ln ON ln.nspname = t.schemaname
                          JOIN pg_catalog.pg_class AS l ON l.relnamespace = ln.oid AND l.relname = t.tablename
                          JOIN pg_catalog.pg_partition_tree(c.oid) AS f ON f.relid::oid = l.oid)) AS published,
       coalesce((SELECT pg_catalog.sum(pg_catalog.pg_table_size(p.relid::oid)) FROM pg_catalog.pg_partition_tree(c.oid) AS p
                 WHERE p.isleaf), pg_catalog.pg_table_size(c.oid))::int8 AS table_bytes,
       coalesce((SELECT pg_catalog.sum(pg_catalog.pg_indexes_size(p.relid::oid)) FROM pg_catalog.pg_partition_tree(c.oid) AS p
                 WHERE p.isleaf), pg_catalog.pg_indexes_size(c.oid))::int8 AS index_bytes,
       -- reltuples is -1 where VACUUM and ANALYZE have not counted yet.
       (SELECT CASE WHEN pg_catalog.bool_and(l.reltuples >= 0 OR pg_catalog.pg_relation_size(l.oid) = 0)
                    THEN pg_catalog.sum(greatest(l.reltuples, 0)) END
        FROM pg_catalog.pg_class AS l
        WHERE l.oid = c.oid AND c.relkind <> 'p'
           OR l.oid IN (SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(c.oid) AS p WHERE p.isleaf))::int8
           AS rows_estimate,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_partition_tree(c.oid) AS p WHERE p.isleaf AND p.relid::oid <> c.oid) AS partitions,
       EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) AS p
               JOIN pg_catalog.pg_class AS l ON l.oid = p.relid::oid WHERE l.relkind = 'f') AS foreign_partitions,
       EXISTS (SELECT FROM pg_catalog.pg_trigger AS t
               WHERE t.tgrelid IN (SELECT c.oid UNION SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(c.oid) AS p)
                 AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND (t.tgtype & 4) <> 0) AS insert_triggers,
       pg_catalog.pg_is_in_recovery() AS in_recovery,
       pg_catalog.current_setting('wal_level') AS wal_level,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots) AS slots,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication) AS standbys,
       pg_catalog.current_setting('maintenance_work_mem') AS maintenance_work_mem,
       (pg_catalog.current_setting('shared_buffers')) AS shared_buffers,
       pg_catalog.current_setting('max_parallel_maintenance_workers')::int8 AS maintenance_workers,
       EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = c.relowner AND r.rolsuper) AS owner_superuser
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = %(oid)s::oid
