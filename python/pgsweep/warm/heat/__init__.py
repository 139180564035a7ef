"""Save what both caches hold, restore it, and compare."""
