"""Workloads and experiments on private clusters."""
