-- Temporary relations of this database, those of all sessions: their pages lie outside shared_buffers, but their accesses
-- are counted for the database.
SELECT c.oid::pg_catalog.int8
FROM pg_catalog.pg_class AS c
WHERE c.relpersistence OPERATOR(pg_catalog.=) 't' AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,i,t,S}'::pg_catalog."char"[])
