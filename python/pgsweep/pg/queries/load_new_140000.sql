-- Schema and name of a table that is to be made; whether it is there, and as what.
SELECT pg_catalog.convert_to(w.schema, 'UTF8') AS schema,
       pg_catalog.convert_to(w.name, 'UTF8') AS name,
       pg_catalog.convert_to(pg_catalog.format('%%I.%%I', w.schema, w.name), 'UTF8') AS quoted,
       c.oid IS NOT NULL AS there,
       coalesce(c.oid, 0::oid)::int8 AS oid
FROM (SELECT CASE pg_catalog.cardinality(p.parts) WHEN 1 THEN %(schema)s::text ELSE p.parts[1] END AS schema,
             p.parts[pg_catalog.cardinality(p.parts)] AS name
      FROM (SELECT pg_catalog.parse_ident(%(name)s::text) AS parts) AS p
      WHERE pg_catalog.cardinality(p.parts) <= 2) AS w
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = w.schema
LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = w.name
