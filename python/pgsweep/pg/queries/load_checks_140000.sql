-- What a table asks of each row alone: checks by name and expression, columns that are not null by name.
-- The session's search_path is pg_catalog, so an expression names everything else with its schema.
SELECT pg_catalog.convert_to(c.conname::text, 'UTF8') AS name,
       pg_catalog.convert_to(pg_catalog.pg_get_expr(c.conbin, c.conrelid), 'UTF8') AS expression
  FROM pg_catalog.pg_constraint AS c
 WHERE c.conrelid = %(oid)s::oid AND c.contype = 'c'
   -- A function or an operator of users may rely on another search_path; the table itself asks such a check.
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d
                   WHERE d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND d.objid = c.oid
                     AND d.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass))
UNION ALL
SELECT pg_catalog.convert_to(a.attname::text, 'UTF8'), NULL
  FROM pg_catalog.pg_attribute AS a
 WHERE a.attrelid = %(oid)s::oid AND a.attnum > 0 AND a.attnotnull AND NOT a.attisdropped
   AND a.attgenerated = '' AND (a.attidentity = '' OR a.attname::text = ANY (%(columns)s::text[]))
