-- Whose code the objects of an extension are; $1 the extension, $2 those of its functions and views that are to be used.
-- A role is trusted if it is a superuser or this role; for a role that is not a superuser also the administrators of hosted
-- services, who own the extensions there. A superuser needs a trusted owner of the schema too: the owner of a schema can
-- rename it, or drop it with all that it holds, and put other objects in the place of these at any time.
-- This role is the one that logged in, and it counts as a superuser if it may become one: the owner of a database can set
-- the current role (ALTER DATABASE ... SET role), and code that runs in the session can change it back (SET ROLE).
WITH wanted AS MATERIALIZED (
    SELECT %s::text AS extension, %s::text[] AS objects
), me AS (
    SELECT r.oid,
           EXISTS (SELECT FROM pg_catalog.pg_roles AS s
                   WHERE s.rolsuper AND pg_catalog.pg_has_role(r.oid, s.oid, 'MEMBER')) AS rolsuper
    FROM pg_catalog.pg_roles AS r
    WHERE r.rolname = session_user
), trusted AS (
    SELECT r.oid
    FROM pg_catalog.pg_roles AS r
    CROSS JOIN me
    WHERE r.rolsuper
       OR r.oid = me.oid
       OR NOT me.rolsuper AND r.oid IN (
           SELECT m.member
           FROM pg_catalog.pg_auth_members AS m
           JOIN pg_catalog.pg_roles AS g ON g.oid = m.roleid
           WHERE g.rolname IN ('rds_superuser', 'cloudsqlsuperuser', 'azure_pg_admin', 'alloydbsuperuser')
           UNION ALL
           SELECT g.oid
           FROM pg_catalog.pg_roles AS g
           WHERE g.rolname IN ('rds_superuser', 'cloudsqlsuperuser', 'azure_pg_admin', 'alloydbsuperuser'))
), objects AS (
    SELECT c.relname AS name, c.relowner AS owner, 'pg_catalog.pg_class'::regclass AS catalog, c.oid AS object
    FROM wanted AS w
    JOIN pg_catalog.pg_extension AS e ON e.extname = w.extension
    JOIN pg_catalog.pg_class AS c ON c.relnamespace = e.extnamespace AND c.relname = ANY (w.objects)
    UNION ALL
    SELECT p.proname, p.proowner, 'pg_catalog.pg_proc'::regclass, p.oid
    FROM wanted AS w
    JOIN pg_catalog.pg_extension AS e ON e.extname = w.extension
    JOIN pg_catalog.pg_proc AS p ON p.pronamespace = e.extnamespace AND p.proname = ANY (w.objects)
), members AS (
    SELECT o.name, o.owner, o.catalog, d.objid IS NOT NULL AS member
    FROM objects AS o
    CROSS JOIN wanted AS w
    JOIN pg_catalog.pg_extension AS e ON e.extname = w.extension
    LEFT JOIN pg_catalog.pg_depend AS d
         ON d.classid = o.catalog AND d.objid = o.object AND d.deptype = 'e'
         AND d.refclassid = 'pg_catalog.pg_extension'::regclass AND d.refobjid = e.oid
)
-- The first owner who is not trusted, or null.
SELECT (SELECT pg_catalog.convert_to(pg_catalog.pg_get_userbyid(o.owner)::text, c.name)
        FROM (SELECT 0 AS number, e.extowner AS owner
              UNION ALL
              -- A function beside the extension's own of that name has other parameters and is never called; a view would be.
              SELECT 1, m.owner FROM members AS m WHERE m.member OR m.catalog = 'pg_catalog.pg_class'::regclass) AS o
        WHERE o.owner NOT IN (SELECT t.oid FROM trusted AS t)
        ORDER BY o.number
        LIMIT 1) AS stranger,
       -- A view that does not belong to the extension, whoever created it.
       NOT EXISTS (SELECT FROM members AS m
                   WHERE NOT m.member AND m.catalog = 'pg_catalog.pg_class'::regclass) AS whole,
       pg_catalog.convert_to(n.nspname::text, c.name) AS schema,
       pg_catalog.convert_to(pg_catalog.pg_get_userbyid(s.owner)::text, c.name) AS schema_owner,
       NOT me.rolsuper OR s.owner IN (SELECT t.oid FROM trusted AS t) AS schema_trusted
FROM wanted AS w
JOIN pg_catalog.pg_extension AS e ON e.extname = w.extension
CROSS JOIN me
JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
CROSS JOIN LATERAL (
    -- From 15 on the schema public belongs to pg_database_owner, whose only member is the owner of the database.
    SELECT CASE WHEN pg_catalog.pg_get_userbyid(n.nspowner) = 'pg_database_owner' THEN d.datdba ELSE n.nspowner END AS owner) AS s
CROSS JOIN (SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) AS c (name)
