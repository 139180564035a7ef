-- What became of a transaction.
SELECT pg_catalog.pg_xact_status(%(xid)s::xid8) AS outcome
