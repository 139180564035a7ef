-- What this session's role may see and do, and whom to ask for more; names as bytes, so that none can fail.
WITH encoding AS (
    SELECT CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END AS name
), supabase AS (
    SELECT pg_catalog.current_setting('supautils.privileged_extensions', true) IS NOT NULL
        OR pg_catalog.current_setting('supautils.reserved_roles', true) IS NOT NULL AS here
), administrator AS (
    -- Hosted servers keep the superuser for themselves; members of these roles may create extensions and grant pg_monitor,
    -- and so may the role postgres of Supabase.
    SELECT r.rolname, r.rolsuper
    FROM supabase AS s
    CROSS JOIN pg_catalog.pg_roles AS r
    LEFT JOIN pg_catalog.pg_auth_members AS m ON m.member = r.oid
    LEFT JOIN pg_catalog.pg_roles AS g ON g.oid = m.roleid
         AND g.rolname IN ('rds_superuser', 'cloudsqlsuperuser', 'azure_pg_admin', 'alloydbsuperuser',
                           'neon_superuser')
    WHERE r.rolcanlogin AND (r.rolsuper OR g.oid IS NOT NULL OR (s.here AND r.rolname = 'postgres'))
    ORDER BY r.rolname <> current_user, g.oid IS NULL AND NOT (s.here AND r.rolname = 'postgres'), r.oid
    LIMIT 1
)
SELECT pg_catalog.convert_to(current_user::text, e.name) AS role,
       pg_catalog.convert_to(a.rolname::text, e.name) AS administrator,
       NOT a.rolsuper AS hosted,
       (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) AS superuser,
       pg_catalog.pg_has_role(current_user, 'pg_monitor', 'USAGE') AS monitor,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class WHERE relkind IN ('r', 'i', 't', 'm', 'S')) AS relations,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_database WHERE datallowconn) AS databases,
       (SELECT pg_catalog.array_agg(pg_catalog.convert_to(d.datname::text, e.name) ORDER BY d.datname)
        FROM pg_catalog.pg_database AS d
        WHERE d.datallowconn AND NOT pg_catalog.has_database_privilege(d.oid, 'CONNECT')) AS closed_databases,
       pg_catalog.pg_relation_filepath('pg_catalog.pg_class'::regclass) AS file,
       pg_catalog.current_setting('shared_memory_size_in_huge_pages', true)::int8 AS huge_pages_needed,
       pg_catalog.inet_server_addr() IS NULL AS by_socket
FROM encoding AS e
LEFT JOIN administrator AS a ON true
