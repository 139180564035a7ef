"""Tests of what a server costs its host."""
