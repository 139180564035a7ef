-- Which of these schemas exist, and which a session as this one uses an extension in: of a superuser, only those whose
-- owners are superusers, or this role (see extension_trust).
WITH me AS (
    SELECT r.oid,
           EXISTS (SELECT FROM pg_catalog.pg_roles AS s
                   WHERE s.rolsuper AND pg_catalog.pg_has_role(r.oid, s.oid, 'MEMBER')) AS rolsuper
    FROM pg_catalog.pg_roles AS r
    WHERE r.rolname = session_user
)
SELECT w.name AS schema,
       n.oid IS NOT NULL AS existing,
       NOT me.rolsuper OR o.oid IS NOT NULL AS trusted
FROM pg_catalog.unnest(%s::text[]) AS w (name)
CROSS JOIN me
JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = w.name
-- From 15 on the schema public belongs to pg_database_owner, whose only member is the owner of the database.
LEFT JOIN pg_catalog.pg_roles AS o
     ON o.oid = CASE WHEN pg_catalog.pg_get_userbyid(n.nspowner) = 'pg_database_owner' THEN d.datdba ELSE n.nspowner END
     AND (o.rolsuper OR o.oid = me.oid)
