-- The indexes of a table with all that is needed to make each again as it is, and what forbids to drop it. The texts are
-- complete statements: the server quotes the names, and qualifies them, as the search_path is pg_catalog alone.
SELECT pg_catalog.convert_to(c.relname::text, 'UTF8') AS name,
       pg_catalog.convert_to(pg_catalog.pg_get_indexdef(i.indexrelid), 'UTF8') AS definition,
       pg_catalog.convert_to(CASE WHEN con.oid IS NULL THEN pg_catalog.format('DROP INDEX %%I.%%I', n.nspname, c.relname)
            ELSE pg_catalog.format('ALTER TABLE ONLY %%I.%%I DROP CONSTRAINT %%I', tn.nspname, t.relname, con.conname) END, 'UTF8') AS drop,
       pg_catalog.convert_to(CASE WHEN con.contype IN ('p', 'u')
            THEN pg_catalog.format('ALTER TABLE ONLY %%I.%%I ADD CONSTRAINT %%I %%s USING INDEX %%I%%s', tn.nspname, t.relname, con.conname,
                                   CASE con.contype WHEN 'p' THEN 'PRIMARY KEY' ELSE 'UNIQUE' END, c.relname,
                                   CASE WHEN con.condeferrable THEN ' DEFERRABLE' ELSE '' END
                                   || CASE WHEN con.condeferred THEN ' INITIALLY DEFERRED' ELSE '' END)
            END, 'UTF8') AS constrained,
       con.contype::text AS constraint_type,
       i.indisunique AS is_unique,
       i.indisvalid AND i.indisready AND i.indislive AS is_valid,
       pg_catalog.convert_to(coalesce(s.spcname::text, ''), 'UTF8') AS tablespace,
       pg_catalog.convert_to(pg_catalog.concat_ws(e';\n',
           (SELECT pg_catalog.string_agg(pg_catalog.format('ALTER INDEX %%I.%%I ALTER COLUMN %%s SET STATISTICS %%s', n.nspname, c.relname,
                                                           a.attnum, a.attstattarget), e';\n' ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = i.indexrelid AND a.attnum > 0 AND a.attstattarget >= 0),
           CASE WHEN d.description IS NOT NULL
                THEN pg_catalog.format('COMMENT ON INDEX %%I.%%I IS %%L', n.nspname, c.relname, d.description) END), 'UTF8') AS index_extras,
       pg_catalog.convert_to(pg_catalog.concat_ws(e';\n',
           CASE WHEN i.indisclustered
                THEN pg_catalog.format('ALTER TABLE ONLY %%I.%%I CLUSTER ON %%I', tn.nspname, t.relname, c.relname) END,
           CASE WHEN cd.description IS NOT NULL
                THEN pg_catalog.format('COMMENT ON CONSTRAINT %%I ON %%I.%%I IS %%L', con.conname, tn.nspname, t.relname, cd.description) END),
           'UTF8') AS last_extras,
       pg_catalog.pg_relation_size(i.indexrelid) AS bytes,
       am.amname::text AS method,
       CASE WHEN c.relkind = 'I' OR EXISTS (SELECT FROM pg_catalog.pg_inherits AS h WHERE h.inhrelid = i.indexrelid)
                 THEN 'it belongs to a partitioned index'
            WHEN NOT (i.indisvalid AND i.indisready AND i.indislive) THEN 'it is not valid, and left as it is'
            WHEN NOT pg_catalog.has_schema_privilege(n.oid, 'CREATE') THEN 'this role may not make it again in its schema'
            WHEN s.oid IS NOT NULL AND NOT pg_catalog.has_tablespace_privilege(s.oid, 'CREATE')
                 THEN 'this role may not make it again in its tablespace'
            WHEN i.indisreplident OR (con.contype = 'p' AND EXISTS (SELECT FROM pg_catalog.pg_publication_tables AS p
                 WHERE p.schemaname = tn.nspname AND p.tablename = t.relname)) THEN 'it is the replica identity'
            WHEN con.contype = 'x' AND i.indisunique THEN 'a constraint without overlaps cannot be made again exactly'
            WHEN con.contype IN ('p', 'u') AND i.indisexclusion THEN 'a constraint without overlaps cannot be made again exactly'
            WHEN con.oid IS NOT NULL AND (NOT con.conislocal OR con.coninhcount > 0 OR con.conparentid <> 0) THEN 'its constraint is inherited'
            WHEN EXISTS (SELECT FROM pg_catalog.pg_constraint AS f
                         WHERE f.contype = 'f' AND f.conindid = i.indexrelid AND f.conrelid <> i.indrelid)
                 THEN 'foreign keys of other tables need it'
            WHEN EXISTS (SELECT FROM pg_catalog.pg_depend AS x
                         WHERE x.deptype IN ('e', 'x') AND (x.classid, x.objid) IN (('pg_catalog.pg_class'::regclass, i.indexrelid),
                                                                                     ('pg_catalog.pg_constraint'::regclass, con.oid)))
                 THEN 'an extension needs it'
            WHEN EXISTS (SELECT FROM pg_catalog.pg_depend AS x
                         WHERE (x.refclassid, x.refobjid) IN (('pg_catalog.pg_class'::regclass, i.indexrelid),
                                                               ('pg_catalog.pg_constraint'::regclass, con.oid))
                           AND x.deptype IN ('n', 'a')
                           AND NOT (x.classid = 'pg_catalog.pg_constraint'::regclass
                                    AND EXISTS (SELECT FROM pg_catalog.pg_constraint AS f
                                                WHERE f.oid = x.objid AND f.contype = 'f' AND f.conrelid = i.indrelid)))
                 THEN 'a view or another object depends on it'
            WHEN EXISTS (SELECT FROM pg_catalog.pg_seclabel AS l
                         WHERE l.classoid = 'pg_catalog.pg_class'::regclass AND l.objoid = i.indexrelid)
                 THEN 'it has a security label'
            WHEN EXISTS (SELECT FROM pg_catalog.pg_depend AS x
                         WHERE x.classid = 'pg_catalog.pg_class'::regclass AND x.objid = i.indexrelid
                           AND x.refclassid = 'pg_catalog.pg_proc'::regclass AND x.refobjid >= 16384)
                 OR EXISTS (SELECT FROM pg_catalog.pg_depend AS x
                            JOIN pg_catalog.pg_operator AS o ON o.oid = x.refobjid
                            JOIN pg_catalog.pg_proc AS f ON f.oid = o.oprcode::oid
                            JOIN pg_catalog.pg_language AS l ON l.oid = f.prolang
                            WHERE x.classid = 'pg_catalog.pg_class'::regclass AND x.objid = i.indexrelid
                              AND x.refclassid = 'pg_catalog.pg_operator'::regclass AND l.lanname NOT IN ('c', 'internal')
                              AND f.oid >= 16384)
                 THEN 'its expressions call functions that may need the search_path of a session'
            END AS kept
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class AS t ON t.oid = i.indrelid
JOIN pg_catalog.pg_namespace AS tn ON tn.oid = t.relnamespace
JOIN pg_catalog.pg_am AS am ON am.oid = c.relam
LEFT JOIN pg_catalog.pg_tablespace AS s ON s.oid = c.reltablespace
LEFT JOIN pg_catalog.pg_constraint AS con ON con.conindid = i.indexrelid AND con.conrelid = i.indrelid AND con.contype IN ('p', 'u', 'x')
LEFT JOIN pg_catalog.pg_description AS d ON d.classoid = 'pg_catalog.pg_class'::regclass AND d.objoid = i.indexrelid AND d.objsubid = 0
LEFT JOIN pg_catalog.pg_description AS cd ON cd.classoid = 'pg_catalog.pg_constraint'::regclass AND cd.objoid = con.oid AND cd.objsubid = 0
WHERE i.indrelid = %(oid)s::oid
ORDER BY c.relname
