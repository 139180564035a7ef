-- Give this session the memory that one snapshot needs, so that the server writes no temporary file.
SELECT pg_catalog.set_config('work_mem', greatest(setting::int8, {memory_kb})::text, false)
FROM pg_catalog.pg_settings
WHERE name = 'work_mem'
