-- Relations with storage that begin like $1, as SQL writes them: without `public`; $2 at most. System catalogs only where they are asked for.
SELECT pg_catalog.convert_to(r.name, CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS name
FROM (
    SELECT CASE WHEN n.nspname = 'public' THEN pg_catalog.quote_ident(c.relname)
                ELSE pg_catalog.concat(pg_catalog.quote_ident(n.nspname), '.', pg_catalog.quote_ident(c.relname)) END AS name
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'i', 'm') AND n.nspname <> 'pg_toast'
) AS r
WHERE pg_catalog.starts_with(r.name, %s::text)
ORDER BY pg_catalog.starts_with(r.name, 'pg_catalog.'), r.name
LIMIT %s::int8
