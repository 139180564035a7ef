-- Which provider hosts the server, by settings (or a function) that only its servers have; null for none that is known.
SELECT CASE
    WHEN pg_catalog.to_regproc('pg_catalog.aurora_version') IS NOT NULL THEN 'aurora'
    WHEN pg_catalog.current_setting('rds.extensions', true) IS NOT NULL
      OR pg_catalog.current_setting('rds.superuser_variables', true) IS NOT NULL THEN 'rds'
    WHEN pg_catalog.current_setting('alloydb.iam_authentication', true) IS NOT NULL
      OR pg_catalog.current_setting('alloydb.enable_pgaudit', true) IS NOT NULL
      OR pg_catalog.current_setting('google_columnar_engine.enabled', true) IS NOT NULL THEN 'alloydb'
    WHEN pg_catalog.current_setting('cloudsql.iam_authentication', true) IS NOT NULL
      OR pg_catalog.current_setting('cloudsql.logical_decoding', true) IS NOT NULL
      OR pg_catalog.current_setting('cloudsql.enable_pgaudit', true) IS NOT NULL THEN 'cloudsql'
    WHEN pg_catalog.current_setting('azure.extensions', true) IS NOT NULL
      OR pg_catalog.current_setting('azure.accepted_password_auth_method', true) IS NOT NULL THEN 'azure'
    WHEN pg_catalog.current_setting('supautils.privileged_extensions', true) IS NOT NULL
      OR pg_catalog.current_setting('supautils.reserved_roles', true) IS NOT NULL THEN 'supabase'
    WHEN pg_catalog.current_setting('neon.tenant_id', true) IS NOT NULL
      OR pg_catalog.current_setting('neon.timeline_id', true) IS NOT NULL THEN 'neon'
END AS provider
