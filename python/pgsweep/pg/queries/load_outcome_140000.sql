-- Whether a transaction was committed, was rolled back, or is in progress.
SELECT pg_catalog.pg_xact_status(%(xid)s::xid8) AS outcome
