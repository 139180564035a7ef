-- The records that a load has rejected.
SELECT r.file::int8, r.line, r.reason, r.record FROM {schema}.reject AS r WHERE r.load = %(id)s::uuid ORDER BY r.file, r.line
