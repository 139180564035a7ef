-- What a new partition has of its partitioned table: key, tablespace, owner, and whether that is this role.
SELECT pg_catalog.convert_to(pg_catalog.pg_get_partkeydef(c.oid), 'UTF8') AS key,
       pg_catalog.convert_to(coalesce(s.spcname::text, ''), 'UTF8') AS tablespace,
       pg_catalog.convert_to(pg_catalog.pg_get_userbyid(c.relowner)::text, 'UTF8') AS owner,
       pg_catalog.pg_get_userbyid(c.relowner) = current_user AS same_owner
FROM pg_catalog.pg_class AS c
LEFT JOIN pg_catalog.pg_tablespace AS s ON s.oid = c.reltablespace
WHERE c.oid = %(oid)s::oid
