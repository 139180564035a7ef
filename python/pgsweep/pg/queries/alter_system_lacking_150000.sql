-- What a role without superuser lacks to set these parameters by ALTER SYSTEM, and to read and reload the files.
SELECT 'parameter' AS what, p.name
FROM pg_catalog.unnest(%s::text[]) AS p (name)
WHERE NOT pg_catalog.has_parameter_privilege(p.name, 'ALTER SYSTEM')
UNION ALL
SELECT 'relation', r.name
FROM (VALUES ('pg_catalog.pg_file_settings')) AS r (name)
WHERE NOT pg_catalog.has_table_privilege(r.name, 'SELECT')
UNION ALL
SELECT 'function', f.name
FROM (VALUES ('pg_catalog.pg_show_all_file_settings()'), ('pg_catalog.pg_reload_conf()')) AS f (name)
WHERE NOT pg_catalog.has_function_privilege(f.name, 'EXECUTE')
UNION ALL
SELECT 'role', m.name
FROM (VALUES ('pg_read_all_settings')) AS m (name)
WHERE NOT pg_catalog.pg_has_role(m.name, 'USAGE')
