-- The unfinished load of a table.
SELECT l.id::text, l.phase, l.document, l.before
FROM {schema}.load AS l WHERE l.table_oid = %(oid)s::oid
