-- The functions in SQL and in procedural languages that run when rows are copied into a table, or its statistics are made:
-- of triggers, checks, defaults, generated columns, indexes, extended statistics, partition keys, types, and of event
-- triggers. Those in C are not among them: only a superuser makes them, and no search_path changes what they do.
WITH RECURSIVE tables AS (
    SELECT %(oid)s::oid AS oid
    UNION SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(%(oid)s::oid) AS p
    UNION SELECT a.relid::oid FROM pg_catalog.pg_partition_ancestors(%(oid)s::oid) AS a
), types AS (
    SELECT a.atttypid AS oid FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid IN (SELECT t.oid FROM tables AS t) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT n.oid
    FROM types AS w
    JOIN pg_catalog.pg_type AS y ON y.oid = w.oid
    CROSS JOIN LATERAL (
        SELECT y.typbasetype AS oid
        UNION ALL SELECT y.typelem
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range AS r WHERE y.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute AS a
                  WHERE a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS n
    WHERE n.oid <> 0
), objects (catalog, oid, what) AS (
    SELECT 'pg_catalog.pg_trigger'::regclass, g.oid, 'trigger ' || g.tgname
    FROM pg_catalog.pg_trigger AS g
    WHERE g.tgrelid IN (SELECT t.oid FROM tables AS t) AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A') AND (g.tgtype & 4) <> 0
    UNION ALL
    SELECT 'pg_catalog.pg_constraint'::regclass, n.oid, 'constraint ' || n.conname
    FROM pg_catalog.pg_constraint AS n
    WHERE n.conrelid IN (SELECT t.oid FROM tables AS t) OR n.contypid IN (SELECT y.oid FROM types AS y WHERE y.oid <> 0)
    UNION ALL
    SELECT 'pg_catalog.pg_attrdef'::regclass, f.oid, 'default of column ' || a.attname
    FROM pg_catalog.pg_attrdef AS f
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
    WHERE f.adrelid IN (SELECT t.oid FROM tables AS t)
    UNION ALL
    SELECT 'pg_catalog.pg_class'::regclass, i.indexrelid, 'index ' || c.relname
    FROM pg_catalog.pg_index AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    WHERE i.indrelid IN (SELECT t.oid FROM tables AS t)
    UNION ALL
    SELECT 'pg_catalog.pg_class'::regclass, t.oid, 'partition key' FROM tables AS t
    UNION ALL
    SELECT 'pg_catalog.pg_statistic_ext'::regclass, s.oid, 'statistics ' || s.stxname
    FROM pg_catalog.pg_statistic_ext AS s
    WHERE s.stxrelid IN (SELECT t.oid FROM tables AS t)
    UNION ALL
    SELECT 'pg_catalog.pg_type'::regclass, y.oid, 'type ' || pg_catalog.format_type(y.oid, NULL) FROM types AS y
    UNION ALL
    SELECT 'pg_catalog.pg_event_trigger'::regclass, e.oid, 'event trigger ' || e.evtname
    FROM pg_catalog.pg_event_trigger AS e
    WHERE e.evtenabled IN ('O', 'A') AND e.evtevent <> 'login'
), called (oid, what) AS (
    SELECT d.refobjid, o.what
    FROM objects AS o
    JOIN pg_catalog.pg_depend AS d ON d.classid = o.catalog AND d.objid = o.oid
    WHERE d.refclassid = 'pg_catalog.pg_proc'::regclass
    UNION ALL
    SELECT p.oprcode::oid, o.what
    FROM objects AS o
    JOIN pg_catalog.pg_depend AS d ON d.classid = o.catalog AND d.objid = o.oid
    JOIN pg_catalog.pg_operator AS p ON p.oid = d.refobjid
    WHERE d.refclassid = 'pg_catalog.pg_operator'::regclass
    UNION ALL
    SELECT s.function, o.what
    FROM objects AS o
    JOIN pg_catalog.pg_depend AS d ON d.classid = o.catalog AND d.objid = o.oid
    JOIN pg_catalog.pg_opclass AS k ON k.oid = d.refobjid AND k.oid >= 16384
    CROSS JOIN LATERAL (
        SELECT m.amproc::oid AS function FROM pg_catalog.pg_amproc AS m WHERE m.amprocfamily = k.opcfamily
        UNION ALL
        SELECT p.oprcode::oid FROM pg_catalog.pg_amop AS m JOIN pg_catalog.pg_operator AS p ON p.oid = m.amopopr
        WHERE m.amopfamily = k.opcfamily) AS s
    WHERE d.refclassid = 'pg_catalog.pg_opclass'::regclass
    UNION ALL
    -- Found by their names in the text of others.
    SELECT p.oid, NULL
    FROM pg_catalog.pg_proc AS p
    JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE p.proname = ANY (%(words)s::text[]) AND n.nspname = ANY (%(words)s::text[] || %(path)s::text[])
)
SELECT p.oid::int8,
       pg_catalog.convert_to(pg_catalog.format('%%I.%%I(%%s)', n.nspname, p.proname,
                             pg_catalog.pg_get_function_identity_arguments(p.oid)), 'UTF8') AS name,
       pg_catalog.convert_to(pg_catalog.pg_get_userbyid(p.proowner)::text, 'UTF8') AS owner,
       pg_catalog.convert_to(coalesce(pg_catalog.min(c.what), ''), 'UTF8') AS used_by,
       pg_catalog.convert_to((SELECT pg_catalog.max(pg_catalog.substr(s.setting, 13)) FROM pg_catalog.unnest(p.proconfig) AS s (setting)
                              WHERE s.setting LIKE 'search\_path=%%'), 'UTF8') AS own_path,
       -- The names in a body of SQL between BEGIN ATOMIC and END were resolved when it was written.
       pg_catalog.convert_to(CASE WHEN coalesce(pg_catalog.pg_get_function_sqlbody(p.oid), '') = '' THEN p.prosrc ELSE '' END, 'UTF8') AS body
FROM called AS c
JOIN pg_catalog.pg_proc AS p ON p.oid = c.oid
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
WHERE p.oid >= 16384 AND l.lanname NOT IN ('c', 'internal')
GROUP BY p.oid, n.nspname
ORDER BY 2
