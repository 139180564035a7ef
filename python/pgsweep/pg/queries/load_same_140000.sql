-- Whether a name still means the table that a load began with.
SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
               WHERE c.oid = %(oid)s::oid AND n.nspname = %(schema)s AND c.relname = %(table)s) AS same
