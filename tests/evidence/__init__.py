"""Tests of evidence, and recording it."""
