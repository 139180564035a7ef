"""Tests of `pgsweep serve`."""
