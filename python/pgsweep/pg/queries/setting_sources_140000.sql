-- Where settings have their values from: those that are named, and all that come from a file or the command line, or
-- whose values wait for a restart, with what else shows who keeps them. Names of files as bytes; they are seen by
-- members of pg_read_all_settings only.
SELECT s.name,
       pg_catalog.convert_to(s.setting, pg_catalog.getdatabaseencoding()) AS setting,
       s.source,
       pg_catalog.convert_to(s.sourcefile, pg_catalog.getdatabaseencoding()) AS sourcefile,
       s.pending_restart
FROM pg_catalog.pg_settings AS s
WHERE s.name = ANY (%s::text[])
   OR s.sourcefile IS NOT NULL
   OR s.source = 'command line'
   OR s.pending_restart
   OR s.name IN ('allow_alter_system', 'archive_command', 'config_file', 'data_directory', 'shared_preload_libraries')
UNION ALL
SELECT o.name, pg_catalog.convert_to(pg_catalog.current_setting(o.name, true), pg_catalog.getdatabaseencoding()),
       'configuration file', NULL, false
FROM (VALUES ('cnpg.config_sha256')) AS o (name)
WHERE pg_catalog.current_setting(o.name, true) IS NOT NULL
ORDER BY 1
