"""Read relations into cold caches: gather, plan, read, verify."""
