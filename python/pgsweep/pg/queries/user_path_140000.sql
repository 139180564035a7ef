-- The search_path that this session would have without pgsweep's own: of role, database, connection or configuration file.
SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'search_path'
