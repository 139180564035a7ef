-- Reads stretches of one fork; cheaper a stretch than the statement that can tell which of them failed.
SELECT sum({schema}.pg_prewarm(%s::oid::regclass, %s, %s, p.first_block, p.last_block))
FROM unnest(%s::int8[], %s::int8[]) AS p (first_block, last_block)
