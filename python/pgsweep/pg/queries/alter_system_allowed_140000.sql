-- Whether this session may run ALTER SYSTEM: on a primary, as a superuser, where the server does not forbid it (17).
SELECT pg_catalog.pg_is_in_recovery(),
       (SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user),
       COALESCE(pg_catalog.current_setting('allow_alter_system', true), 'on') = 'on'
