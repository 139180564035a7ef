"""Tests of what is in which cache."""
