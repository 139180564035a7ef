-- Names among these words that mean something in the schemas `left_out`, and nothing in pg_catalog or in the others.
WITH named (kind, namespace, name) AS (
    SELECT 'f', p.pronamespace, p.proname FROM pg_catalog.pg_proc AS p WHERE p.proname = ANY (%(words)s::text[])
    UNION ALL
    SELECT 'r', c.relnamespace, c.relname FROM pg_catalog.pg_class AS c
    WHERE c.relname = ANY (%(words)s::text[]) AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
    UNION ALL
    SELECT 't', y.typnamespace, y.typname FROM pg_catalog.pg_type AS y
    WHERE y.typname = ANY (%(words)s::text[]) AND y.typrelid = 0 AND y.typtype IN ('b', 'd', 'e', 'r', 'm')
)
SELECT pg_catalog.convert_to(pg_catalog.min(pg_catalog.format('%%I.%%I', n.nspname, f.name)), 'UTF8') AS needed
FROM named AS f
JOIN pg_catalog.pg_namespace AS n ON n.oid = f.namespace
WHERE n.nspname = ANY (%(left_out)s::text[])
  AND NOT EXISTS (SELECT FROM named AS k JOIN pg_catalog.pg_namespace AS m ON m.oid = k.namespace
                  WHERE k.kind = f.kind AND k.name = f.name AND m.nspname = ANY (%(path)s::text[]))
GROUP BY f.name
ORDER BY 1
