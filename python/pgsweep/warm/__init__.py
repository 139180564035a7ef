"""Bring a cold server to heat, and keep it there."""
