-- What the configuration files say, the one that counts of each setting last, and what is wrong in them. Superusers only.
SELECT pg_catalog.convert_to(f.name, pg_catalog.getdatabaseencoding()),
       pg_catalog.convert_to(f.setting, pg_catalog.getdatabaseencoding()),
       pg_catalog.convert_to(f.sourcefile, pg_catalog.getdatabaseencoding()),
       f.sourceline, f.error
FROM pg_catalog.pg_file_settings AS f
WHERE f.applied OR f.error IS NOT NULL
ORDER BY f.seqno
