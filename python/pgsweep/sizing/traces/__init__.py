"""Curves from traces: replay through the exact pool, from a drawn warm start."""
