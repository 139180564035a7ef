-- The condition that holds for the rows of a partition.
SELECT pg_catalog.convert_to(pg_catalog.pg_get_partition_constraintdef(pg_catalog.to_regclass(%(name)s::text)), 'UTF8') AS bound
