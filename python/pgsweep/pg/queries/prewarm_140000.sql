-- Reads stretches of blocks, in their order. A relation that was dropped has no size, a truncated one a smaller size than was planned.
WITH wanted AS MATERIALIZED (
    SELECT %s::text AS mode, %s::oid[] AS relation, %s::text[] AS fork, %s::int8[] AS first_block, %s::int8[] AS last_block
), sizes AS MATERIALIZED (
    -- Once a fork: each look opens the relation and its files.
    SELECT f.relation, f.fork, pg_catalog.pg_relation_size(f.relation::regclass, f.fork) / pg_catalog.current_setting('block_size')::int8 AS blocks
    FROM (SELECT DISTINCT u.relation, u.fork
          FROM wanted AS w, ROWS FROM (pg_catalog.unnest(w.relation), pg_catalog.unnest(w.fork)) AS u (relation, fork)) AS f
)
SELECT p.number,
       CASE WHEN p.blocks > p.first_block
            THEN {schema}.pg_prewarm(p.relation::regclass, p.mode, p.fork, p.first_block, least(p.last_block, p.blocks - 1))
            WHEN p.blocks IS NOT NULL THEN 0
       END AS blocks
FROM (
    SELECT u.number, w.mode, u.relation, u.fork, u.first_block, u.last_block, s.blocks
    FROM wanted AS w
    CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(w.relation), pg_catalog.unnest(w.fork), pg_catalog.unnest(w.first_block),
                                  pg_catalog.unnest(w.last_block)) WITH ORDINALITY
         AS u (relation, fork, first_block, last_block, number)
    LEFT JOIN sizes AS s ON s.relation = u.relation AND s.fork = u.fork
    ORDER BY u.number
) AS p
