-- How many buffers hold a page, as the server counts them (pg_buffercache 1.4).
SELECT buffers_used FROM {schema}.pg_buffercache_summary()
