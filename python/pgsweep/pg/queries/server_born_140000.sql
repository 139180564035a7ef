-- When a file of the data directory that the server never writes was put there. Its ctime can be copied by no program: a
-- copy of the directory has another one, and a restart, a promotion or another port leave it as it is.
SELECT extract(epoch FROM f.change)::int8 FROM pg_catalog.pg_stat_file('PG_VERSION') AS f
