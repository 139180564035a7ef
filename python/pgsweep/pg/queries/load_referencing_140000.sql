-- The foreign keys of other tables that refer to a table.
SELECT pg_catalog.convert_to(f.conname::text, 'UTF8') AS name,
       pg_catalog.convert_to(pg_catalog.format('%%I.%%I', n.nspname, c.relname), 'UTF8') AS of_table
FROM pg_catalog.pg_constraint AS f
JOIN pg_catalog.pg_class AS c ON c.oid = f.conrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE f.contype = 'f' AND f.confrelid = %(oid)s::oid AND f.conrelid <> f.confrelid
ORDER BY 2, 1
