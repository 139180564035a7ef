"""All that reads the host: /proc, /sys, cgroups. Never speaks SQL."""
