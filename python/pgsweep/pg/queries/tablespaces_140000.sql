-- The tablespaces there are, to check what a look into the server's memory shows.
SELECT oid::int8 FROM pg_catalog.pg_tablespace
