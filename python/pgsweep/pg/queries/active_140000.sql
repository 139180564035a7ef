-- Processes of the server that execute a statement now, and whether they wait for a block to be read; not our own. Names as bytes, so that none can fail.
WITH encoding AS (
    SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END AS name
)
SELECT a.pid,
       pg_catalog.convert_to(a.usename::text, e.name) AS username,
       pg_catalog.convert_to(a.datname::text, e.name) AS database,
       a.query_id,
       coalesce(a.wait_event_type = 'IO'
                AND a.wait_event IN ('DataFileRead', 'DataFilePrefetch', 'AioIoCompletion', 'AioIoUringExecution'), false) AS reads
FROM pg_catalog.pg_stat_activity AS a
CROSS JOIN encoding AS e
WHERE a.state IN ('active', 'fastpath function call')
  AND a.backend_type IN ('client backend', 'parallel worker', 'autovacuum worker')
  AND a.pid <> pg_catalog.pg_backend_pid()
