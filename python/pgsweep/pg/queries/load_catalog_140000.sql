-- All that the catalog says of a table, its partitions and what hangs on them, by names and not by oids: equal before and after a
-- load. (Sizes, statistics and the order of internal names are not among it.)
WITH family AS MATERIALIZED (
    SELECT %(oid)s::oid AS oid UNION SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(%(oid)s::oid) AS p
), tables AS MATERIALIZED (
    SELECT c.*, n.nspname, pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS title
    FROM family JOIN pg_catalog.pg_class AS c ON c.oid = family.oid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
), indexes AS MATERIALIZED (
    SELECT c.*, i.indexrelid, i.indrelid, i.indisunique, i.indisprimary, i.indisexclusion, i.indimmediate, i.indisclustered, i.indisvalid,
           i.indisready, i.indislive, i.indisreplident, t.title AS of_table, pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS title
    FROM pg_catalog.pg_index AS i JOIN tables AS t ON t.oid = i.indrelid JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
), lines AS (
    SELECT 'table' AS kind, title, pg_catalog.jsonb_build_array(relkind, relpersistence, pg_catalog.pg_get_userbyid(relowner), relacl::text,
           reloptions::text, reltablespace::int8, relreplident, relrowsecurity, relforcerowsecurity, relispartition,
           pg_catalog.pg_get_expr(relpartbound, oid), relam::int8, pg_catalog.obj_description(oid, 'pg_class')) AS facts
    FROM tables
    UNION ALL
    SELECT 'column', t.title || '.' || pg_catalog.quote_ident(a.attname), pg_catalog.jsonb_build_array(a.attnum,
           pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.attstattarget, a.attstorage,
           a.attcompression, a.attcollation::int8, a.attacl::text, a.attoptions::text, pg_catalog.pg_get_expr(d.adbin, d.adrelid),
           a.attinhcount, a.attislocal, pg_catalog.col_description(a.attrelid, a.attnum))
    FROM pg_catalog.pg_attribute AS a JOIN tables AS t ON t.oid = a.attrelid
    LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'index', title, pg_catalog.jsonb_build_array(of_table, pg_catalog.pg_get_indexdef(oid), reloptions::text, reltablespace::int8,
           relpersistence, pg_catalog.pg_get_userbyid(relowner), indisunique, indisprimary, indisexclusion, indimmediate, indisclustered,
           indisvalid, indisready, indislive, indisreplident, pg_catalog.obj_description(oid, 'pg_class'),
           (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(a.attname, a.attstattarget) ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = indexes.oid),
           (SELECT pg_catalog.jsonb_agg(h.inhparent::regclass::text) FROM pg_catalog.pg_inherits AS h WHERE h.inhrelid = indexes.oid))
    FROM indexes
    UNION ALL
    SELECT 'constraint', t.title || '.' || pg_catalog.quote_ident(k.conname), pg_catalog.jsonb_build_array(k.contype,
           pg_catalog.pg_get_constraintdef(k.oid), k.condeferrable, k.condeferred, k.convalidated, k.conislocal, k.coninhcount,
           k.connoinherit, x.title, pg_catalog.obj_description(k.oid, 'pg_constraint'), k.conparentid <> 0,
           (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(g.tgtype, g.tgenabled, g.tgdeferrable, g.tginitdeferred) ORDER BY g.tgtype)
            FROM pg_catalog.pg_trigger AS g WHERE g.tgconstraint = k.oid))
    FROM pg_catalog.pg_constraint AS k JOIN tables AS t ON t.oid = k.conrelid LEFT JOIN indexes AS x ON x.oid = k.conindid
    UNION ALL
    SELECT 'referencing', pg_catalog.format('%%s.%%I', k.conrelid::regclass, k.conname), pg_catalog.jsonb_build_array(
           pg_catalog.pg_get_constraintdef(k.oid), k.convalidated)
    FROM pg_catalog.pg_constraint AS k WHERE k.contype = 'f' AND k.confrelid IN (SELECT oid FROM tables)
    UNION ALL
    SELECT 'trigger', t.title || '.' || pg_catalog.quote_ident(g.tgname), pg_catalog.jsonb_build_array(pg_catalog.pg_get_triggerdef(g.oid),
           g.tgenabled, g.tgparentid <> 0, pg_catalog.obj_description(g.oid, 'pg_trigger'))
    FROM pg_catalog.pg_trigger AS g JOIN tables AS t ON t.oid = g.tgrelid WHERE NOT g.tgisinternal
    UNION ALL
    SELECT 'policy', t.title || '.' || pg_catalog.quote_ident(p.polname), pg_catalog.jsonb_build_array(p.polcmd, p.polpermissive,
           p.polroles::text, pg_catalog.pg_get_expr(p.polqual, p.polrelid), pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid))
    FROM pg_catalog.pg_policy AS p JOIN tables AS t ON t.oid = p.polrelid
    UNION ALL
    SELECT 'rule', t.title || '.' || pg_catalog.quote_ident(r.rulename), pg_catalog.jsonb_build_array(pg_catalog.pg_get_ruledef(r.oid), r.ev_enabled)
    FROM pg_catalog.pg_rewrite AS r JOIN tables AS t ON t.oid = r.ev_class
    UNION ALL
    SELECT 'statistics', pg_catalog.format('%%I', s.stxname), pg_catalog.jsonb_build_array(t.title, pg_catalog.pg_get_statisticsobjdef(s.oid),
           s.stxstattarget)
    FROM pg_catalog.pg_statistic_ext AS s JOIN tables AS t ON t.oid = s.stxrelid
    UNION ALL
    SELECT 'publication', t.title || ' ' || pg_catalog.quote_ident(p.pubname), '[]'::jsonb
    FROM pg_catalog.pg_publication_tables AS p JOIN tables AS t ON t.nspname = p.schemaname AND t.relname = p.tablename
    UNION ALL
    SELECT 'inheritance', t.title, pg_catalog.jsonb_build_array(h.inhparent::regclass::text, h.inhseqno)
    FROM pg_catalog.pg_inherits AS h JOIN tables AS t ON t.oid = h.inhrelid
)
SELECT pg_catalog.convert_to(kind || ' ' || title, 'UTF8') AS title, pg_catalog.convert_to(facts::text, 'UTF8') AS facts
FROM lines ORDER BY kind, title, facts::text
