-- The triggers of a table that are not of constraints, and the statements that disable each and put it back.
SELECT pg_catalog.convert_to(g.tgname::text, 'UTF8') AS name,
       pg_catalog.convert_to(pg_catalog.pg_get_triggerdef(g.oid), 'UTF8') AS definition,
       g.tgenabled::text AS enabled,
       (g.tgtype & 4) <> 0 AS on_insert,
       pg_catalog.convert_to(pg_catalog.format('ALTER TABLE ONLY %%I.%%I DISABLE TRIGGER %%I', n.nspname, c.relname, g.tgname), 'UTF8') AS disable,
       pg_catalog.convert_to(pg_catalog.format('ALTER TABLE ONLY %%I.%%I ENABLE %%sTRIGGER %%I', n.nspname, c.relname,
           CASE g.tgenabled WHEN 'A' THEN 'ALWAYS ' WHEN 'R' THEN 'REPLICA ' ELSE '' END, g.tgname), 'UTF8') AS enable
FROM pg_catalog.pg_trigger AS g
JOIN pg_catalog.pg_class AS c ON c.oid = g.tgrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE g.tgrelid = %(oid)s::oid AND NOT g.tgisinternal
ORDER BY g.tgname
