"""Tests of what /proc, /sys and files say."""
