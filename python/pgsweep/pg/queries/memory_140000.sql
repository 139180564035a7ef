-- Give this session the memory that one snapshot needs, lest the server write it to a temporary file.
SELECT pg_catalog.set_config('work_mem', greatest(setting::int8, {memory_kb})::text, false)
FROM pg_catalog.pg_settings
WHERE name = 'work_mem'
