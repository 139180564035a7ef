"""Warm a cold server's caches, and keep them warm."""
