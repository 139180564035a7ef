-- Evict one relation's buffers, all forks, one after the other; what is pinned stays.
SELECT pg_catalog.count(*) FILTER (WHERE e.evicted) AS evicted,
       pg_catalog.count(*) FILTER (WHERE NOT e.evicted) AS kept
FROM {schema}.pg_buffercache AS b
CROSS JOIN LATERAL (SELECT {schema}.pg_buffercache_evict(b.bufferid) AS evicted) AS e
WHERE b.relfilenode OPERATOR(pg_catalog.=) pg_catalog.pg_relation_filenode(%s::pg_catalog.oid::pg_catalog.regclass)
  AND b.reldatabase OPERATOR(pg_catalog.=) %s::pg_catalog.oid
  AND b.reltablespace OPERATOR(pg_catalog.=) %s::pg_catalog.oid
