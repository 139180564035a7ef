-- The foreign keys of a table whose rows all come from its files: whether each is checked at the end of the transaction, what
-- the server says of a row t of a temporary table with the records, and the condition under which it does.
SELECT f.condeferred AS deferred,
       pg_catalog.convert_to(pg_catalog.format(
           'pg_catalog.concat(%%L, pg_catalog.concat_ws(%%L, %%s), %%L)',
           pg_catalog.format('insert or update on table "%%s" violates foreign key constraint "%%s" (Key (%%s)=(', t.relname, f.conname, k.names),
           ', ', k.mine, pg_catalog.format(') is not present in table "%%s".)', r.relname)), 'UTF8') AS words,
       pg_catalog.convert_to(pg_catalog.format('%%s AND NOT EXISTS (SELECT FROM %%s%%I.%%I AS r WHERE %%s)%%s',
           k.filled, CASE WHEN r.relkind <> 'p' THEN 'ONLY ' END, n.nspname, r.relname, k.same,
           CASE WHEN k.own
                THEN pg_catalog.format(' AND NOT EXISTS (SELECT FROM pg_temp.%%I AS r WHERE %%s)', %(records)s::text, k.same) END),
           'UTF8') AS missing
FROM pg_catalog.pg_constraint AS f
JOIN pg_catalog.pg_class AS t ON t.oid = f.conrelid
JOIN pg_catalog.pg_class AS r ON r.oid = f.confrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace
CROSS JOIN LATERAL (
    SELECT pg_catalog.string_agg(a.attname::text, ', ' ORDER BY u.at) AS names,
           pg_catalog.string_agg(pg_catalog.format('t.%%I', a.attname), ', ' ORDER BY u.at) AS mine,
           pg_catalog.string_agg(pg_catalog.format('t.%%I IS NOT NULL', a.attname), ' AND ' ORDER BY u.at) AS filled,
           pg_catalog.string_agg(pg_catalog.format('r.%%I OPERATOR(%%I.%%s) t.%%I', b.attname, s.nspname, o.oprname, a.attname),
                                 ' AND ' ORDER BY u.at) AS same,
           pg_catalog.bool_and(a.attname = ANY (%(columns)s::text[])) AS mine_given,
           pg_catalog.bool_and(b.attname = ANY (%(columns)s::text[])) AS theirs_given,
           -- As text, an operator or a cast of users could be found that the key does not have.
           pg_catalog.bool_and(s.nspname = 'pg_catalog' AND (a.atttypid < 16384 OR x.typtype = 'e')
                               AND (b.atttypid < 16384 OR y.typtype = 'e')) AS built_in,
           f.confrelid = f.conrelid OR f.confrelid IN (SELECT p.relid::oid FROM pg_catalog.pg_partition_ancestors(f.conrelid) AS p) AS own
    FROM ROWS FROM (pg_catalog.unnest(f.conkey), pg_catalog.unnest(f.confkey), pg_catalog.unnest(f.conpfeqop))
         WITH ORDINALITY AS u (mine, theirs, operator, at)
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = f.conrelid AND a.attnum = u.mine
    JOIN pg_catalog.pg_attribute AS b ON b.attrelid = f.confrelid AND b.attnum = u.theirs
    JOIN pg_catalog.pg_type AS x ON x.oid = a.atttypid
    JOIN pg_catalog.pg_type AS y ON y.oid = b.atttypid
    JOIN pg_catalog.pg_operator AS o ON o.oid = u.operator
    JOIN pg_catalog.pg_namespace AS s ON s.oid = o.oprnamespace
) AS k
WHERE f.conrelid = %(oid)s::oid AND f.contype = 'f' AND k.built_in AND k.mine_given AND (k.theirs_given OR NOT k.own)
  -- What it means for each partition that it refers to is a constraint of its own.
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS w WHERE w.oid = f.conparentid AND w.conrelid = f.conrelid)
  -- Which rows of the files are in one partition is not known before.
  AND (k.own OR f.confrelid NOT IN (SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(f.conrelid) AS p))
ORDER BY f.conname
