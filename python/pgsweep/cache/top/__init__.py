"""The live view of the caches: samples of the statistics and of the pool, and what they add up to."""
