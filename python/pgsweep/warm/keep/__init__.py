"""Keep chosen relations resident while other queries flood the pool."""
