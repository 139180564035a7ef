-- Which of these a role without superuser may not set, read, execute or be ($1: of what kind each is, $2: its name).
SELECT n.kind, n.name
FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS n (kind, name)
WHERE NOT CASE n.kind
              WHEN 'parameter' THEN pg_catalog.has_parameter_privilege(n.name, 'ALTER SYSTEM')
              WHEN 'relation' THEN pg_catalog.has_table_privilege(n.name, 'SELECT')
              WHEN 'function' THEN pg_catalog.has_function_privilege(n.name, 'EXECUTE')
              ELSE pg_catalog.pg_has_role(n.name, 'USAGE')
          END
