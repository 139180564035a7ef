-- What of the names $1 this role may not use, in the schemas $2 or where those are named too: a right as GRANT has it, the
-- schema, the name, and a function's arguments. Of relations it needs $3.
WITH encoding AS (
    SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END AS name
), given AS (
    SELECT %s::text[] AS names, %s::text[] AS path, %s::text[] AS rights
), lacking AS (
    SELECT 0 AS rank, 'USAGE ON SCHEMA' AS what, NULL::text AS schema, n.nspname::text AS name, NULL::text AS arguments
    FROM given, pg_catalog.pg_namespace AS n
    WHERE n.nspname = ANY (names) AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE')
    UNION ALL
    SELECT 1, pg_catalog.concat(w.words, ' ON'), n.nspname, c.relname, NULL
    FROM given
    JOIN pg_catalog.pg_class AS c ON c.relname = ANY (names) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (
        SELECT pg_catalog.string_agg(r.word, ', ' ORDER BY r.number) AS words
        FROM ROWS FROM (pg_catalog.unnest(rights)) WITH ORDINALITY AS r (word, number)
        WHERE NOT pg_catalog.has_table_privilege(c.oid, r.word)
    ) AS w
    WHERE w.words IS NOT NULL AND (n.nspname = ANY (names) OR n.nspname = ANY (path))
    UNION ALL
    SELECT 2, 'EXECUTE ON FUNCTION', n.nspname, f.proname, pg_catalog.pg_get_function_identity_arguments(f.oid)
    FROM given
    JOIN pg_catalog.pg_proc AS f ON f.proname = ANY (names)
    JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
    WHERE NOT pg_catalog.has_function_privilege(f.oid, 'EXECUTE')
      -- Those of the system's that are not for everyone read and write the server's files.
      AND n.nspname <> 'pg_catalog' AND (n.nspname = ANY (names) OR n.nspname = ANY (path))
)
SELECT l.what, pg_catalog.convert_to(l.schema, e.name) AS schema, pg_catalog.convert_to(l.name, e.name) AS name,
       pg_catalog.convert_to(l.arguments, e.name) AS arguments
FROM lacking AS l
CROSS JOIN encoding AS e
ORDER BY l.rank, l.schema, l.name, l.arguments
LIMIT 20
