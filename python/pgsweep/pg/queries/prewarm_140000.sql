-- Reads stretches of blocks, in their order. A relation that was dropped has no size, a truncated one a smaller size than was planned.
SELECT p.number,
       CASE WHEN s.blocks > p.first_block
            THEN {schema}.pg_prewarm(p.relation::regclass, %s, p.fork, p.first_block, least(p.last_block, s.blocks - 1))
            WHEN s.blocks IS NOT NULL THEN 0
       END AS blocks
FROM unnest(%s::oid[], %s::text[], %s::int8[], %s::int8[]) WITH ORDINALITY AS p (relation, fork, first_block, last_block, number)
CROSS JOIN LATERAL (
    SELECT pg_catalog.pg_relation_size(p.relation::regclass, p.fork) / current_setting('block_size')::int8
) AS s (blocks)
