-- The beginnings of the texts of some statements, by their ids; $1. Reads the file of texts, so it is asked rarely.
WITH encoding AS (
    SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END AS name
)
SELECT s.queryid, pg_catalog.convert_to(pg_catalog.left(pg_catalog.min(s.query), 1000), e.name) AS query
FROM {schema}.pg_stat_statements(true) AS s
CROSS JOIN encoding AS e
WHERE s.queryid = ANY (%s::pg_catalog.int8[])
GROUP BY s.queryid, e.name
