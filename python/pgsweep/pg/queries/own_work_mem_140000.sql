-- Roles and databases for which work_mem is set to more than the server's, in bytes, the largest first.
SELECT pg_catalog.concat_ws(' in ', 'role ' || pg_catalog.quote_ident(r.rolname), 'database ' || pg_catalog.quote_ident(d.datname)) AS whose,
       o.work_mem_bytes
FROM (
    SELECT s.setrole, s.setdatabase,
           CASE WHEN v.value ~ '^\s*\d+\s*$' THEN v.value::int8 * 1024
                ELSE pg_catalog.pg_size_bytes(v.value) END AS work_mem_bytes
    FROM pg_catalog.pg_db_role_setting AS s
    CROSS JOIN LATERAL pg_catalog.unnest(s.setconfig) AS c (line)
    CROSS JOIN LATERAL (SELECT pg_catalog.substr(c.line, pg_catalog.length('work_mem=') + 1)) AS v (value)
    WHERE pg_catalog.starts_with(c.line, 'work_mem=')) AS o
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = o.setrole
LEFT JOIN pg_catalog.pg_database AS d ON d.oid = o.setdatabase
WHERE o.work_mem_bytes > %s
ORDER BY o.work_mem_bytes DESC, whose
