"""Warm a cold server: `pgsweep warm run` beside one pg_prewarm after the other, and beside the disk."""
