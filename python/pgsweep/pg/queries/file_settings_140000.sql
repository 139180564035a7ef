-- What the configuration files say, the one that counts of each setting last, and what is wrong in them. Superusers only.
-- Before a reload a setting that takes a restart has the same error as a value that cannot be: `waits` tells them apart by its type.
SELECT pg_catalog.convert_to(f.name, pg_catalog.getdatabaseencoding()),
       pg_catalog.convert_to(f.setting, pg_catalog.getdatabaseencoding()),
       pg_catalog.convert_to(f.sourcefile, pg_catalog.getdatabaseencoding()),
       f.sourceline, f.error,
       s.context IS NOT NULL AND s.context = 'postmaster' AND CASE s.vartype
           WHEN 'bool' THEN f.setting ~* '^(t(r(ue?)?)?|f(a(l(se?)?)?)?|y(es?)?|no?|on|off?|1|0)$'
           WHEN 'enum' THEN pg_catalog.lower(f.setting) = ANY (s.enumvals)
           WHEN 'string' THEN true
           ELSE f.setting ~ '^\s*[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)\s*(B|kB|MB|GB|TB|us|ms|s|min|h|d)?\s*$' END AS waits
FROM pg_catalog.pg_file_settings AS f
LEFT JOIN pg_catalog.pg_settings AS s ON s.name = f.name
WHERE f.applied OR f.error IS NOT NULL
ORDER BY f.seqno
