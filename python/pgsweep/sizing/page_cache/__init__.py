"""What the page cache makes of the misses: memory as one budget, both caches, disk reads."""
