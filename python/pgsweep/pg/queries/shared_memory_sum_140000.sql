-- The size that the server requested from the kernel: the parts with a name, those without, and what is free.
SELECT pg_catalog.sum(allocated_size)::int8 AS requested_bytes FROM pg_catalog.pg_shmem_allocations
