-- The foreign keys of a table, with the statements that drop and make each, and what forbids to drop it. From 19 on rows are
-- checked in batches, but where the referenced table is partitioned (ri_triggers.c).
SELECT pg_catalog.convert_to(f.conname::text, 'UTF8') AS name,
       f.confrelid = f.conrelid AS to_itself,
       pg_catalog.convert_to(pg_catalog.format('ALTER TABLE ONLY %%I.%%I DROP CONSTRAINT %%I', tn.nspname, t.relname, f.conname), 'UTF8') AS drop,
       pg_catalog.convert_to(pg_catalog.format('ALTER TABLE ONLY %%I.%%I ADD CONSTRAINT %%I %%s%%s', tn.nspname, t.relname, f.conname,
           pg_catalog.pg_get_constraintdef(f.oid), CASE WHEN f.convalidated THEN ' NOT VALID' ELSE '' END), 'UTF8') AS add,
       CASE WHEN f.convalidated THEN pg_catalog.convert_to(pg_catalog.format('ALTER TABLE ONLY %%I.%%I VALIDATE CONSTRAINT %%I',
           tn.nspname, t.relname, f.conname), 'UTF8') END AS validate,
       CASE WHEN d.description IS NOT NULL THEN pg_catalog.convert_to(pg_catalog.format('COMMENT ON CONSTRAINT %%I ON %%I.%%I IS %%L',
           f.conname, tn.nspname, t.relname, d.description), 'UTF8') END AS comment,
       CASE WHEN f.conparentid <> 0 OR f.coninhcount > 0 OR NOT f.conislocal THEN 'it is inherited'
            WHEN t.relkind = 'p' OR r.relkind = 'p' THEN 'its table, or the one it refers to, is partitioned'
            WHEN NOT pg_catalog.has_table_privilege(r.oid, 'REFERENCES') THEN 'this role may not refer to that table'
            WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger AS g WHERE g.tgconstraint = f.oid AND g.tgenabled <> 'O')
                 THEN 'its triggers are not enabled as usual, and left as they are'
            WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_trigger AS g WHERE g.tgconstraint = f.oid) THEN 'it is not enforced, and costs nothing'
            WHEN EXISTS (SELECT FROM pg_catalog.pg_depend AS x
                         WHERE x.classid = 'pg_catalog.pg_constraint'::regclass AND x.objid = f.oid AND x.deptype IN ('e', 'x'))
                 THEN 'an extension needs it'
            END AS kept,
       pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= 190000 AND r.relkind <> 'p' AS batched
FROM pg_catalog.pg_constraint AS f
JOIN pg_catalog.pg_class AS t ON t.oid = f.conrelid
JOIN pg_catalog.pg_namespace AS tn ON tn.oid = t.relnamespace
JOIN pg_catalog.pg_class AS r ON r.oid = f.confrelid
LEFT JOIN pg_catalog.pg_description AS d ON d.classoid = 'pg_catalog.pg_constraint'::regclass AND d.objoid = f.oid AND d.objsubid = 0
WHERE f.contype = 'f' AND f.conrelid = %(oid)s::oid
ORDER BY f.conname
