-- The unique indexes of a table, in the order in which a row is checked, for which duplicates can be found among the rows t
-- of a temporary table with the records: the server's words on one, their keys, the condition under which they have one, and
-- that under which the table has it. No row where not all of them can, or where anything else may refuse a record.
WITH uniques AS (
    SELECT i.indexrelid,
           i.indisunique AND NOT i.indisexclusion AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
           AND pg_catalog.strpos(pg_catalog.pg_get_indexdef(i.indexrelid), ' NULLS NOT DISTINCT') = 0
           AND k.built_in AND k.given AS found,
           k.numbered, k.mine, k.filled,
           pg_catalog.format('pg_catalog.concat(%%L, pg_catalog.concat_ws(%%L, %%s), %%L)',
               pg_catalog.format('duplicate key value violates unique constraint "%%s" (Key (%%s)=(', c.relname, k.names),
               ', ', k.mine, ') already exists.)') AS words,
           pg_catalog.format('EXISTS (SELECT FROM ONLY %%I.%%I AS r WHERE %%s)', n.nspname, t.relname, k.same) AS taken
    FROM pg_catalog.pg_index AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_class AS t ON t.oid = i.indrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = t.relnamespace
    CROSS JOIN LATERAL (
        SELECT pg_catalog.string_agg(pg_catalog.pg_get_indexdef(i.indexrelid, u.at::int4, true), ', ' ORDER BY u.at) AS names,
               -- An expression has no name.
               pg_catalog.string_agg(pg_catalog.format('t.%%I', a.attname), ', ' ORDER BY u.at)
                   FILTER (WHERE a.attname IS NOT NULL) AS mine,
               pg_catalog.string_agg(pg_catalog.format('t.%%I IS NOT NULL', a.attname), ' AND ' ORDER BY u.at)
                   FILTER (WHERE a.attname IS NOT NULL) AS filled,
               pg_catalog.string_agg(pg_catalog.format('r.%%I OPERATOR(pg_catalog.=) t.%%I', a.attname, a.attname),
                                     ' AND ' ORDER BY u.at) FILTER (WHERE a.attname IS NOT NULL) AS same,
               pg_catalog.bool_and(a.attname = ANY (%(columns)s::text[])) AS given,
               -- Taken from a sequence, it is another one each time.
               pg_catalog.bool_or(a.attname <> ALL (%(columns)s::text[])
                                  AND (a.attidentity <> ''
                                       OR pg_catalog.starts_with(pg_catalog.pg_get_expr(d.adbin, d.adrelid), 'nextval('))) AS numbered,
               pg_catalog.bool_and((a.atttypid < 16384 OR y.typtype = 'e') AND o.opcnamespace = 'pg_catalog'::regnamespace
                                   AND u.place = a.attcollation) AS built_in
        FROM ROWS FROM (pg_catalog.unnest(i.indkey), pg_catalog.unnest(i.indclass), pg_catalog.unnest(i.indcollation))
             WITH ORDINALITY AS u (attribute, class, place, at)
        LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = u.attribute AND a.attnum > 0
        LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        LEFT JOIN pg_catalog.pg_type AS y ON y.oid = a.atttypid
        LEFT JOIN pg_catalog.pg_opclass AS o ON o.oid = u.class
        WHERE u.at <= i.indnkeyatts
    ) AS k
    WHERE i.indrelid = %(oid)s::oid AND (i.indisunique OR i.indisexclusion)
)
SELECT pg_catalog.convert_to(u.words, 'UTF8') AS words, pg_catalog.convert_to(u.mine, 'UTF8') AS mine,
       pg_catalog.convert_to(u.filled, 'UTF8') AS filled, pg_catalog.convert_to(u.taken, 'UTF8') AS taken
FROM uniques AS u
WHERE u.found
  AND NOT EXISTS (SELECT FROM uniques AS other WHERE NOT coalesce(other.found, false) AND NOT coalesce(other.numbered, false))
  AND EXISTS (SELECT FROM pg_catalog.pg_class AS t WHERE t.oid = %(oid)s::oid AND t.relkind = 'r' AND NOT t.relispartition)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS g WHERE g.attrelid = %(oid)s::oid AND g.attgenerated <> '')
  -- Another record may be a duplicate of one that is refused later: of a missing reference, or by a check that only the
  -- table itself asks (load_checks).
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS f WHERE f.conrelid = %(oid)s::oid AND f.contype = 'f')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS c
                  JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_constraint'::regclass AND d.objid = c.oid
                       AND d.refclassid IN ('pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass)
                  WHERE c.conrelid = %(oid)s::oid AND c.contype = 'c')
ORDER BY u.indexrelid
