-- The name of the server's host, as its kernel has it; null where that is not Linux.
SELECT pg_catalog.btrim(pg_catalog.pg_read_file('/proc/sys/kernel/hostname', 0, 256, true), E' \n')
