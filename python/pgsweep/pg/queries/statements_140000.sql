-- What top-level statements used so far, as pg_stat_statements counts, without their texts. What is nested in others is in their counters.
WITH encoding AS (
    SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END AS name
)
SELECT pg_catalog.convert_to(r.rolname::text, e.name) AS username,
       pg_catalog.convert_to(d.datname::text, e.name) AS database,
       s.queryid,
       pg_catalog.sum(s.calls)::pg_catalog.float8 AS calls,
       pg_catalog.sum(s.total_exec_time) / 1000 AS execution_seconds,
       pg_catalog.sum(s.shared_blks_hit)::pg_catalog.float8 AS hits,
       pg_catalog.sum(s.shared_blks_read)::pg_catalog.float8 AS reads,
       pg_catalog.sum(s.temp_blks_read + s.temp_blks_written)::pg_catalog.float8 AS temporary,
       s.userid::pg_catalog.int8 AS user_oid,
       s.dbid::pg_catalog.int8 AS database_oid
FROM {schema}.pg_stat_statements(false) AS s
CROSS JOIN encoding AS e
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = s.userid
LEFT JOIN pg_catalog.pg_database AS d ON d.oid = s.dbid
WHERE s.toplevel
GROUP BY s.userid, s.dbid, r.rolname, d.datname, s.queryid, e.name
