-- Reads stretches of one fork; cheaper a stretch than the statement that finds which of them failed.
SELECT pg_catalog.sum({schema}.pg_prewarm(%s::oid::regclass, %s::text, %s::text, p.first_block, p.last_block))
FROM ROWS FROM (pg_catalog.unnest(%s::int8[]), pg_catalog.unnest(%s::int8[])) AS p (first_block, last_block)
