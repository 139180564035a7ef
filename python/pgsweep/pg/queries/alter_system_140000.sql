-- For each setting its value, and what postgresql.auto.conf says of it; null where it says nothing.
SELECT s.name,
       pg_catalog.current_setting(s.name) AS value,
       (SELECT f.setting
        FROM pg_catalog.pg_file_settings AS f
        WHERE f.name = s.name AND f.sourcefile ~ '/postgresql[.]auto[.]conf$'
        ORDER BY f.seqno DESC
        LIMIT 1) AS kept
FROM pg_catalog.pg_settings AS s
WHERE s.name = ANY (%s::text[])
ORDER BY s.name
