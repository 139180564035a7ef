-- Which schemas only trusted roles may create in, and own functions, operators and types of. Trusted are superusers, roles
-- that may become one, and the role that logged in. `pg_database_owner` has one member, the owner of the database; the
-- server's own roles have none by themselves.
WITH powerful AS (
    SELECT r.oid
    FROM pg_catalog.pg_roles AS r
    WHERE EXISTS (SELECT FROM pg_catalog.pg_roles AS s WHERE s.rolsuper AND pg_catalog.pg_has_role(r.oid, s.oid, 'MEMBER'))
), stranger AS (
    SELECT r.oid, r.rolname
    FROM pg_catalog.pg_roles AS r
    WHERE r.oid >= 16384 AND r.rolname <> session_user AND r.oid NOT IN (SELECT p.oid FROM powerful AS p)
)
SELECT w.name,
       pg_catalog.convert_to((
           SELECT pg_catalog.min(r.rolname::text)
           FROM stranger AS r
           WHERE pg_catalog.has_schema_privilege(r.oid, n.oid, 'CREATE')
              OR pg_catalog.pg_has_role(r.oid, n.nspowner, 'MEMBER')
              OR EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) AS a
                         WHERE a.privilege_type = 'CREATE' AND a.grantee <> 0 AND pg_catalog.pg_has_role(r.oid, a.grantee, 'MEMBER'))
              OR EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = n.oid AND p.proowner = r.oid)
              OR EXISTS (SELECT FROM pg_catalog.pg_operator AS o WHERE o.oprnamespace = n.oid AND o.oprowner = r.oid)
              OR EXISTS (SELECT FROM pg_catalog.pg_type AS y
                         WHERE y.typnamespace = n.oid AND y.typowner = r.oid AND y.typtype = 'd')), 'UTF8') AS stranger,
       EXISTS (SELECT FROM powerful AS p JOIN pg_catalog.pg_roles AS r ON r.oid = p.oid WHERE r.rolname = session_user) AS powerful,
       n.oid IS NOT NULL AS existing,
       -- Who can rename the schema, and make another one of that name.
       pg_catalog.convert_to((SELECT pg_catalog.min(r.rolname::text) FROM stranger AS r
                              WHERE pg_catalog.pg_has_role(r.oid, n.nspowner, 'MEMBER')), 'UTF8') AS owner
FROM pg_catalog.unnest(%(schemas)s::text[]) WITH ORDINALITY AS w (name, number)
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = w.name
ORDER BY w.number
