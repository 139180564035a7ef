"""`pgsweep warm` and its subcommands."""
