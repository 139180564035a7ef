"""Tests of sessions, the catalog, private servers."""
