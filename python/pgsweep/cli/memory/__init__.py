"""`pgsweep memory` and its subcommands."""
