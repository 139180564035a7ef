-- Background writer and checkpointer up to 16, under the names that 17 gave them.
SELECT buffers_alloc, buffers_clean, maxwritten_clean, buffers_backend, buffers_backend_fsync,
       checkpoints_timed AS checkpointer_num_timed,
       checkpoints_req AS checkpointer_num_requested,
       buffers_checkpoint AS checkpointer_buffers_written,
       checkpoint_write_time AS checkpointer_write_time,
       checkpoint_sync_time AS checkpointer_sync_time
FROM pg_catalog.pg_stat_bgwriter
