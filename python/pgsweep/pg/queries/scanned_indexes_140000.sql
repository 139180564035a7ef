-- Indexes that a query has used since statistics began. Their metapage is read by planning alone.
SELECT indexrelid::int8 FROM pg_catalog.pg_stat_all_indexes WHERE idx_scan > 0
