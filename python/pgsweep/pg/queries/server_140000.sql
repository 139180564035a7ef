-- Facts about the server and the database of this session.
SELECT pg_catalog.current_setting('server_version_num')::int4 AS version_num,
       pg_catalog.current_setting('server_version') AS version,
       pg_catalog.current_setting('block_size')::int4 AS block_size_bytes,
       (SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'shared_buffers') AS shared_buffers_blocks,
       d.oid::int8 AS database_oid,
       pg_catalog.convert_to(d.datname::text, CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)
           AS database,
       d.dattablespace::int8 AS tablespace_oid,
       pg_catalog.pg_is_in_recovery() AS in_recovery
FROM pg_catalog.pg_database AS d
WHERE d.datname = pg_catalog.current_database()
