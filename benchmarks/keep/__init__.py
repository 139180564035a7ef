"""Experiment 8: chosen relations kept resident against a flood."""
