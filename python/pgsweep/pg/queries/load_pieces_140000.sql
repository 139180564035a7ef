-- The pieces that a load has copied and committed.
SELECT p.file::int8, p.piece, p.bytes, p.records, p.rows, p.checksum, p.xid::int8, p.xmin::text = (p.xid::numeric %% 4294967296)::text AS own
FROM {schema}.piece AS p WHERE p.load = %(id)s::uuid ORDER BY p.file, p.piece
