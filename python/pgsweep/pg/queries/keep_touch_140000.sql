-- Touches or reads stretches of blocks of one relation, those that it still has; counts which of both it was by this
-- session's own statistics. A dropped relation has no size and gives no row.
SELECT done.blocks::int8 AS blocks,
       (pg_catalog.pg_stat_get_xact_blocks_fetched(%(oid)s::oid) - before.fetched)::int8 AS accesses,
       (pg_catalog.pg_stat_get_xact_blocks_hit(%(oid)s::oid) - before.hit)::int8 AS hits,
       extract(epoch FROM pg_catalog.clock_timestamp() - before.begin)::float8 AS seconds
FROM (SELECT pg_catalog.pg_relation_size(%(oid)s::oid::regclass, 'main') / pg_catalog.current_setting('block_size')::int8 AS blocks,
             pg_catalog.pg_stat_get_xact_blocks_fetched(%(oid)s::oid) AS fetched,
             pg_catalog.pg_stat_get_xact_blocks_hit(%(oid)s::oid) AS hit,
             pg_catalog.clock_timestamp() AS begin
      OFFSET 0) AS before
CROSS JOIN LATERAL (
    SELECT coalesce(pg_catalog.sum({schema}.pg_prewarm(%(oid)s::oid::regclass, 'buffer'::text, 'main'::text, p.first_block,
                                            least(p.last_block, before.blocks - 1))), 0) AS blocks
    FROM ROWS FROM (pg_catalog.unnest(%(first_blocks)s::int8[]), pg_catalog.unnest(%(last_blocks)s::int8[])) AS p (first_block, last_block)
    WHERE p.first_block < before.blocks) AS done
WHERE before.blocks IS NOT NULL
