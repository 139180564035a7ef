"""The subcommands of `pgsweep lab`."""
