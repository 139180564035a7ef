-- The columns of a table, in their order. A sequence that gives values to an integer column is that of an
-- identity, also of the partitioned table above, or one that its default uses. It may be shared with other
-- tables where it does not belong to this one; then the statement does not move it back.
SELECT pg_catalog.convert_to(a.attname::text, 'UTF8') AS name,
       pg_catalog.convert_to(pg_catalog.format_type(a.atttypid, a.atttypmod), 'UTF8') AS type,
       t.typcategory::text AS category,
       coalesce(e.typname, b.typname)::text IN ('json', 'jsonb') AS is_json,
       a.attgenerated <> '' AS generated,
       a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL AS has_default,
       pg_catalog.convert_to(CASE
           WHEN s.name IS NULL THEN NULL
           WHEN s.of_table IS NOT NULL THEN pg_catalog.format(
               'SELECT setval(pg_get_serial_sequence(%%L, %%L), max(%%I)) FROM %%s',
               s.of_table, s.of_column, s.of_column, s.of_table)
           ELSE pg_catalog.format(
               'SELECT setval(%%L, greatest(max(%%I), (SELECT last_value FROM %%s))) FROM %%I.%%I',
               s.name, a.attname, s.name, n.nspname, c.relname)
       END, 'UTF8') AS move_sequence
FROM pg_catalog.pg_attribute AS a
JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type AS b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_catalog.pg_type AS e ON e.oid = b.typelem AND b.typcategory = 'A'
LEFT JOIN LATERAL (
    SELECT pg_catalog.format('%%I.%%I', m.nspname, q.relname) AS name,
           CASE WHEN w.oid IS NOT NULL THEN pg_catalog.format('%%I.%%I', x.nspname, w.relname) END AS of_table, v.attname AS of_column
    FROM (SELECT d.objid AS oid
          FROM pg_catalog.pg_depend AS d
          JOIN pg_catalog.pg_attribute AS r ON r.attrelid = d.refobjid AND r.attnum = d.refobjsubid
          WHERE a.attidentity <> '' AND d.deptype = 'i' AND r.attname = a.attname
            AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
            AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
            AND d.refobjid IN (a.attrelid, pg_catalog.pg_partition_root(a.attrelid))
          UNION
          SELECT d.refobjid
          FROM pg_catalog.pg_attrdef AS f
          JOIN pg_catalog.pg_depend AS d ON d.objid = f.oid
          WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum AND a.attgenerated = ''
            AND d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
            AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass) AS u
    JOIN pg_catalog.pg_class AS q ON q.oid = u.oid AND q.relkind = 'S'
    JOIN pg_catalog.pg_namespace AS m ON m.oid = q.relnamespace
    LEFT JOIN pg_catalog.pg_depend AS o
        ON o.objid = q.oid AND o.deptype IN ('a', 'i') AND o.refobjsubid > 0
        AND o.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
        AND o.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
        AND (o.refobjid = a.attrelid
             OR o.refobjid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(a.attrelid)))
    LEFT JOIN pg_catalog.pg_class AS w ON w.oid = o.refobjid
    LEFT JOIN pg_catalog.pg_namespace AS x ON x.oid = w.relnamespace
    LEFT JOIN pg_catalog.pg_attribute AS v ON v.attrelid = o.refobjid AND v.attnum = o.refobjsubid
    WHERE b.typname IN ('int2', 'int4', 'int8') AND b.typnamespace = 'pg_catalog'::pg_catalog.regnamespace
    LIMIT 1
) AS s ON true
WHERE a.attrelid = %(oid)s::oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
