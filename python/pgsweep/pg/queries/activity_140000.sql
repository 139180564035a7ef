-- Every process that the server knows of; what the role may not see of other roles' sessions is null. Texts as bytes, so that none can fail.
WITH encoding AS (
    SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END AS name
)
SELECT a.pid,
       pg_catalog.convert_to(COALESCE(a.backend_type, ''), e.name) AS kind,
       pg_catalog.convert_to(a.usename::text, e.name) AS username,
       pg_catalog.convert_to(a.datname::text, e.name) AS database,
       pg_catalog.convert_to(a.application_name, e.name) AS application,
       a.state,
       pg_catalog.convert_to(pg_catalog.left(a.query, 400), e.name) AS query,
       a.backend_type IS NULL AS hidden,
       a.pid = pg_catalog.pg_backend_pid() AS own
FROM pg_catalog.pg_stat_activity AS a
CROSS JOIN encoding AS e
