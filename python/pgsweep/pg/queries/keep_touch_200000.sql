-- As keep_touch of 14, but an index has its counters under functions of its own (72a6dad1c9), so both are added up.
SELECT done.blocks::pg_catalog.int8 AS blocks,
       (pg_catalog.pg_stat_get_xact_blocks_fetched(%(oid)s::pg_catalog.oid)
            OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_xact_idx_blocks_fetched(%(oid)s::pg_catalog.oid)
            OPERATOR(pg_catalog.-) before.fetched)::pg_catalog.int8 AS accesses,
       (pg_catalog.pg_stat_get_xact_blocks_hit(%(oid)s::pg_catalog.oid)
            OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_xact_idx_blocks_hit(%(oid)s::pg_catalog.oid)
            OPERATOR(pg_catalog.-) before.hit)::pg_catalog.int8 AS hits,
       pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) before.begin)::pg_catalog.float8 AS seconds
FROM (SELECT pg_catalog.pg_relation_size(%(oid)s::pg_catalog.oid::pg_catalog.regclass, 'main')
                 OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::pg_catalog.int8 AS blocks,
             pg_catalog.pg_stat_get_xact_blocks_fetched(%(oid)s::pg_catalog.oid)
                 OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_xact_idx_blocks_fetched(%(oid)s::pg_catalog.oid) AS fetched,
             pg_catalog.pg_stat_get_xact_blocks_hit(%(oid)s::pg_catalog.oid)
                 OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_xact_idx_blocks_hit(%(oid)s::pg_catalog.oid) AS hit,
             pg_catalog.clock_timestamp() AS begin
      OFFSET 0) AS before
CROSS JOIN LATERAL (
    SELECT coalesce(pg_catalog.sum({schema}.pg_prewarm(%(oid)s::pg_catalog.oid::pg_catalog.regclass, 'buffer', 'main', p.first_block,
                                            least(p.last_block, before.blocks OPERATOR(pg_catalog.-) 1))), 0) AS blocks
    FROM ROWS FROM (pg_catalog.unnest(%(first_blocks)s::pg_catalog.int8[]), pg_catalog.unnest(%(last_blocks)s::pg_catalog.int8[]))
         AS p (first_block, last_block)
    WHERE p.first_block OPERATOR(pg_catalog.<) before.blocks) AS done
WHERE before.blocks IS NOT NULL
