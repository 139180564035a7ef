"""The simulated page cache against the kernel."""
