-- The columns of a table, in their order.
SELECT pg_catalog.convert_to(a.attname::text, 'UTF8') AS name,
       pg_catalog.convert_to(pg_catalog.format_type(a.atttypid, a.atttypmod), 'UTF8') AS type,
       t.typcategory::text AS category,
       coalesce(e.typname, b.typname)::text IN ('json', 'jsonb') AS is_json,
       a.attgenerated <> '' AS generated,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS required
FROM pg_catalog.pg_attribute AS a
JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type AS b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_catalog.pg_type AS e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = %(oid)s::oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
