-- Background writer and checkpointer from 17 on.
SELECT b.buffers_alloc, b.buffers_clean, b.maxwritten_clean,
       c.num_timed AS checkpointer_num_timed,
       c.num_requested AS checkpointer_num_requested,
       c.buffers_written AS checkpointer_buffers_written,
       c.write_time AS checkpointer_write_time,
       c.sync_time AS checkpointer_sync_time
FROM pg_catalog.pg_stat_bgwriter AS b, pg_catalog.pg_stat_checkpointer AS c
