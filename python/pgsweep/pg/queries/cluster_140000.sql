-- Which cluster this is (a physical standby has its primary's number), and since when its caches are what they are.
SELECT system_identifier::text,
       (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::int8 AS start_time
FROM pg_catalog.pg_control_system()
